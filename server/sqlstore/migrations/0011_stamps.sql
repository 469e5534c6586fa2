-- Numbers that grow when something changes of which gateways have a copy in memory.

-- +goose Up
CREATE TABLE IF NOT EXISTS stamps (
    name  TEXT PRIMARY KEY, -- revocations, or leases and a run
    stamp BIGINT NOT NULL
);

-- +goose Down
DROP TABLE stamps;
