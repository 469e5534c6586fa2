-- Rounds of private plans, and which masked results are counted and not merged. A nonce and the keeper's key of its agent give the
-- mask of a result.

-- +goose Up
CREATE TABLE IF NOT EXISTS private_rounds (
    run      TEXT NOT NULL,
    round    BIGINT NOT NULL,
    privacy  BYTEA NOT NULL, -- what the round's tasks say: statements of keepers and the day
    request  BYTEA NOT NULL, -- to the keepers; empty until the round has closed
    refused  TEXT NOT NULL, -- the rule by which a keeper refused
    checksum BIGINT NOT NULL,
    PRIMARY KEY (run, round)
);

CREATE TABLE IF NOT EXISTS masks (
    run      TEXT NOT NULL,
    round    BIGINT NOT NULL,
    agent    TEXT NOT NULL,
    part     BIGINT NOT NULL, -- number of the result among those of the agent in the round
    batch    BIGINT NOT NULL,
    clients  BIGINT NOT NULL, -- in the result
    nonce    TEXT NOT NULL, -- hexadecimal
    checksum BIGINT NOT NULL,
    PRIMARY KEY (run, round, agent, part)
);
CREATE INDEX IF NOT EXISTS masks_batch ON masks (run, batch);

-- The newest epoch that each keeper has signed. A keeper whose epoch goes back is a copy, or was restored.
CREATE TABLE IF NOT EXISTS keepers (
    identity TEXT PRIMARY KEY,
    epoch    BIGINT NOT NULL
);

ALTER TABLE runs ADD COLUMN reason_code TEXT NOT NULL DEFAULT ''; -- why a running run does not advance, for programs

-- +goose Down
ALTER TABLE runs DROP COLUMN reason_code;
DROP TABLE keepers;
DROP TABLE masks;
DROP TABLE private_rounds;
