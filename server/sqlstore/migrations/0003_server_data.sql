-- Data on the server: which data the leading coordinator has, and the state of the runs that use it.

-- +goose Up
ALTER TABLE leaders ADD COLUMN data TEXT NOT NULL DEFAULT ''; -- fingerprint of the holder's data; empty if it has none

-- A table of the ledger and not a blob, because agents may fetch blobs.
CREATE TABLE server_data (
    run         TEXT PRIMARY KEY REFERENCES runs (id),
    fingerprint TEXT NOT NULL, -- of the data with which the run began
    kept        BYTEA NOT NULL -- the server's personal layers at the run's newest version; empty at version 0
);

-- +goose Down
DROP TABLE server_data;
ALTER TABLE leaders DROP COLUMN data;
