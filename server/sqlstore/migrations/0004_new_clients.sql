-- Clients that a run holds out. After the run they adapt its weights, and report their errors as sums.

-- +goose Up
CREATE TABLE held_out (
    run    TEXT NOT NULL REFERENCES runs (id),
    client TEXT NOT NULL,
    done   BIGINT NOT NULL DEFAULT 0, -- 1 if the client's agent has answered
    PRIMARY KEY (run, client)
);
CREATE INDEX held_out_open ON held_out (run) WHERE done = 0;

-- Sums over the clients that have answered, so that the error of one client is not stored.
CREATE TABLE new_clients (
    run          TEXT PRIMARY KEY REFERENCES runs (id),
    held_out     BIGINT NOT NULL,
    answered     BIGINT NOT NULL DEFAULT 0,
    scored       BIGINT NOT NULL DEFAULT 0,
    relative_mae BIGINT NOT NULL DEFAULT 0 -- sum over the scored clients, in millionths
);

-- +goose Down
DROP TABLE new_clients;
DROP TABLE held_out;
