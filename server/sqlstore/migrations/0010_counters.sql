-- How far each of several processes has counted. A process writes its own row, so that processes do not wait for each other.

-- +goose Up
CREATE TABLE IF NOT EXISTS counters (
    run      TEXT NOT NULL,
    slot     BIGINT NOT NULL, -- of the process
    batch    BIGINT NOT NULL, -- its newest batch
    receipts BIGINT NOT NULL, -- that it has written
    round    BIGINT NOT NULL, -- the round that it counts for
    counted  BIGINT NOT NULL, -- updates of this round, for people
    bytes    BIGINT NOT NULL, -- of these updates, for people
    checksum BIGINT NOT NULL, -- of the first four columns
    PRIMARY KEY (run, slot)
);

-- +goose Down
DROP TABLE counters;
