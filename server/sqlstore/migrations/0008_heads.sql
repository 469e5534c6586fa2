-- Signed statements about which weights the versions of a run have, for as long as the run's members are stored. Versions
-- themselves are deleted earlier.

-- +goose Up
CREATE TABLE heads (
    run       TEXT NOT NULL,
    version   BIGINT NOT NULL,
    weights   TEXT NOT NULL, -- blob
    previous  BYTEA NOT NULL, -- hash of the head before; empty if there is none
    signature BYTEA NOT NULL, -- also the checksum of the row
    PRIMARY KEY (run, version)
);

-- +goose Down
DROP TABLE heads;
