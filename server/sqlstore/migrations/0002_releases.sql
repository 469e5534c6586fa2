-- Validation errors as sums with the results that are counted, releases of models, and clients' reports.

-- +goose Up
ALTER TABLE rounds ADD COLUMN evaluated BIGINT NOT NULL DEFAULT 0; -- clients
ALTER TABLE rounds ADD COLUMN relative_mae BIGINT NOT NULL DEFAULT 0; -- sum over these clients, in millionths
ALTER TABLE partials ADD COLUMN evaluated BIGINT NOT NULL DEFAULT 0;
ALTER TABLE partials ADD COLUMN relative_mae BIGINT NOT NULL DEFAULT 0;
ALTER TABLE updates ADD COLUMN evaluated BIGINT NOT NULL DEFAULT 0;
ALTER TABLE updates ADD COLUMN relative_mae BIGINT NOT NULL DEFAULT 0;

-- Rows are never deleted, and their blobs neither, so that a release can be examined and repeated.
CREATE TABLE releases (
    id        TEXT PRIMARY KEY,
    name      TEXT NOT NULL,
    number    BIGINT NOT NULL, -- from 1 for each name
    run       TEXT NOT NULL, -- in a region, the run may be unknown
    version   BIGINT NOT NULL,
    role      TEXT NOT NULL,
    plan_blob TEXT NOT NULL,
    weights   TEXT NOT NULL, -- blob
    parent    TEXT NOT NULL, -- the newest earlier release of the same name, or empty
    actor     TEXT NOT NULL,
    created   BIGINT NOT NULL,
    withdrawn BIGINT NOT NULL DEFAULT 0,
    UNIQUE (name, number)
);
CREATE INDEX releases_weights ON releases (weights);

-- The newest report of each client.
CREATE TABLE reports (
    client  TEXT PRIMARY KEY,
    day     BIGINT NOT NULL, -- days since 1970-01-01
    message BYTEA NOT NULL, -- ClientReport
    pending BIGINT NOT NULL -- 1 in a region until the hub has the report
);
CREATE INDEX reports_pending ON reports (client) WHERE pending = 1;

-- Histograms of the reports of a day: the number of clients in each bucket of a metric.
CREATE TABLE report_days (
    day     BIGINT NOT NULL,
    release TEXT NOT NULL,
    metric  TEXT NOT NULL,
    bucket  BIGINT NOT NULL,
    clients BIGINT NOT NULL,
    PRIMARY KEY (day, release, metric, bucket)
);

-- +goose Down
DROP TABLE report_days;
DROP TABLE reports;
DROP TABLE releases;
ALTER TABLE updates DROP COLUMN relative_mae;
ALTER TABLE updates DROP COLUMN evaluated;
ALTER TABLE partials DROP COLUMN relative_mae;
ALTER TABLE partials DROP COLUMN evaluated;
ALTER TABLE rounds DROP COLUMN relative_mae;
ALTER TABLE rounds DROP COLUMN evaluated;
