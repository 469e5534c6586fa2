-- One schema for SQLite and PostgreSQL. Times are Unix milliseconds; 0 means not set.

-- +goose Up
CREATE TABLE tokens (
    hash    BYTEA PRIMARY KEY, -- hash of the secret, which is not stored
    note    TEXT NOT NULL,
    uses    BIGINT NOT NULL, -- remaining
    expires BIGINT NOT NULL
);

CREATE TABLE agents (
    id      TEXT PRIMARY KEY,
    name    TEXT NOT NULL,
    joined  BIGINT NOT NULL,
    expires BIGINT NOT NULL, -- expiry of the newest certificate
    seen    BIGINT NOT NULL,
    revoked BIGINT NOT NULL DEFAULT 0
);

CREATE TABLE clients (
    name      TEXT PRIMARY KEY,
    agent     TEXT NOT NULL REFERENCES agents (id),
    inputs    TEXT NOT NULL, -- sorted, separated by spaces
    step      BIGINT NOT NULL, -- seconds
    announced BIGINT NOT NULL,
    revoked   BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX clients_agent ON clients (agent);

CREATE TABLE runs (
    id       TEXT PRIMARY KEY,
    name     TEXT NOT NULL,
    plan     TEXT NOT NULL, -- as submitted; settled once the run has begun
    plan_blob TEXT NOT NULL DEFAULT '',
    state    TEXT NOT NULL,
    reason   TEXT NOT NULL DEFAULT '',
    wanted   BIGINT NOT NULL, -- number of clients to wait for
    fleet    BIGINT NOT NULL DEFAULT 0,
    created  BIGINT NOT NULL,
    started  BIGINT NOT NULL DEFAULT 0,
    finished BIGINT NOT NULL DEFAULT 0,
    round    BIGINT NOT NULL DEFAULT 0, -- the open round
    version  BIGINT NOT NULL DEFAULT 0, -- the newest version
    batch    BIGINT NOT NULL DEFAULT 0, -- the newest batch; the row's lock makes batches follow the order of commits
    server   TEXT NOT NULL DEFAULT '', -- blob of fed/round.Server at the newest version
    remote   BIGINT NOT NULL DEFAULT 0 -- 1 if this is a region and a hub drives the run
);
CREATE INDEX runs_created ON runs (created);

-- A separate table, because every count writes the run's row, and the state is long if many clients train at a time.
CREATE TABLE machines (
    run   TEXT PRIMARY KEY REFERENCES runs (id),
    state TEXT NOT NULL -- fed/round.Machine, without receipts since it was saved
);

-- The fleet of a run, fixed when the run begins.
CREATE TABLE members (
    run    TEXT NOT NULL REFERENCES runs (id),
    no     BIGINT NOT NULL, -- from 0, in the order of names
    client TEXT NOT NULL,
    PRIMARY KEY (run, no)
);

CREATE TABLE versions (
    run     TEXT NOT NULL REFERENCES runs (id),
    version BIGINT NOT NULL,
    weights TEXT NOT NULL, -- blobs
    control TEXT NOT NULL,
    PRIMARY KEY (run, version)
);

CREATE INDEX versions_weights ON versions (weights);
CREATE INDEX versions_control ON versions (control);

CREATE TABLE rounds (
    run        TEXT NOT NULL REFERENCES runs (id),
    round      BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    state      TEXT NOT NULL,
    opened     BIGINT NOT NULL,
    closed     BIGINT NOT NULL DEFAULT 0,
    asked      BIGINT NOT NULL DEFAULT 0,
    counted    BIGINT NOT NULL DEFAULT 0,
    late       BIGINT NOT NULL DEFAULT 0,
    lost       BIGINT NOT NULL DEFAULT 0,
    loss       DOUBLE PRECISION NOT NULL DEFAULT 0,
    bytes      BIGINT NOT NULL DEFAULT 0,
    last_batch BIGINT NOT NULL DEFAULT 0, -- the last batch that this round merges
    PRIMARY KEY (run, round)
);

-- Permission to be counted. Counting an update deletes the row, and so does withdrawing the permission.
CREATE TABLE leases (
    run     TEXT NOT NULL,
    round   BIGINT NOT NULL,
    client  TEXT NOT NULL,
    no      BIGINT NOT NULL,
    agent   TEXT NOT NULL,
    version BIGINT NOT NULL,
    until   BIGINT NOT NULL,
    PRIMARY KEY (run, round, client)
);
CREATE INDEX leases_agent ON leases (agent);
CREATE INDEX leases_until ON leases (run, until);

-- Counted updates. Rows are never changed.
CREATE TABLE receipts (
    run        TEXT NOT NULL,
    round      BIGINT NOT NULL,
    client     TEXT NOT NULL,
    no         BIGINT NOT NULL,
    version    BIGINT NOT NULL,
    batch      BIGINT NOT NULL,
    examples   BIGINT NOT NULL,
    steps      BIGINT NOT NULL,
    train_loss DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (run, round, client)
);
CREATE INDEX receipts_batch ON receipts (run, batch);

-- Sums of updates that are counted and not merged: one row for each batch and version. Rows are never changed: if the reply
-- to a commit is lost, a retry could add to a sum twice.
CREATE TABLE partials (
    run     TEXT NOT NULL,
    batch   BIGINT NOT NULL,
    version BIGINT NOT NULL,
    numbers BYTEA NOT NULL,
    PRIMARY KEY (run, batch, version)
);

-- Updates that are not merged, for plans that need each update.
CREATE TABLE updates (
    run      TEXT NOT NULL,
    batch    BIGINT NOT NULL,
    client   TEXT NOT NULL,
    version  BIGINT NOT NULL,
    examples BIGINT NOT NULL,
    steps    BIGINT NOT NULL,
    loss     DOUBLE PRECISION NOT NULL,
    numbers  BYTEA NOT NULL,
    PRIMARY KEY (run, batch, client, version)
);

-- In a region: which batches, or single updates, form a sending to the hub, and the hub's verdict.
CREATE TABLE relayed (
    run     TEXT NOT NULL,
    batch   BIGINT NOT NULL,
    client  TEXT NOT NULL, -- empty for a whole batch
    sending TEXT NOT NULL,
    outcome TEXT NOT NULL, -- empty until the hub has decided
    PRIMARY KEY (run, batch, client)
);
CREATE INDEX relayed_sending ON relayed (run, sending);

CREATE TABLE leaders (
    role   TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    epoch  BIGINT NOT NULL,
    until  BIGINT NOT NULL
);

CREATE TABLE audit (
    id      TEXT PRIMARY KEY, -- sorts by time
    at      BIGINT NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
);

-- +goose Down
DROP TABLE audit;
DROP TABLE leaders;
DROP TABLE relayed;
DROP TABLE updates;
DROP TABLE partials;
DROP TABLE receipts;
DROP TABLE leases;
DROP TABLE rounds;
DROP TABLE versions;
DROP TABLE members;
DROP TABLE machines;
DROP TABLE runs;
DROP TABLE clients;
DROP TABLE agents;
DROP TABLE tokens;
