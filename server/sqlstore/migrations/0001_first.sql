-- One schema for SQLite and PostgreSQL. Times are Unix milliseconds; 0 means not set.

-- A column checksum has the sum of the row, which the program computes: see rowsum.go. Tables of identities have an index
-- over the columns that decide access instead, with which SQLite's integrity check compares the rows.

-- +goose Up
CREATE TABLE tokens (
    hash    BYTEA PRIMARY KEY, -- hash of the secret, which is not stored
    note    TEXT NOT NULL,
    uses    BIGINT NOT NULL, -- remaining
    expires BIGINT NOT NULL,
    used    BIGINT NOT NULL DEFAULT 0, -- when an agent joined with it last
    id      TEXT NOT NULL DEFAULT '', -- for people; it gives no access
    created BIGINT NOT NULL DEFAULT 0,
    actor   TEXT NOT NULL DEFAULT '',
    clients BIGINT NOT NULL DEFAULT 0, -- most clients of an agent; 0 means the server's limit
    pattern TEXT NOT NULL DEFAULT '', -- of clients' names; empty means any
    joined  BIGINT NOT NULL DEFAULT 0, -- agents that joined with it
    revoked BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX tokens_id ON tokens (id);
CREATE INDEX tokens_created ON tokens (created, id);
CREATE INDEX tokens_access ON tokens (uses, expires, revoked, clients, pattern);

CREATE TABLE agents (
    id           TEXT PRIMARY KEY,
    name         TEXT NOT NULL,
    joined       BIGINT NOT NULL,
    expires      BIGINT NOT NULL, -- expiry of the newest certificate
    seen         BIGINT NOT NULL,
    revoked      BIGINT NOT NULL DEFAULT 0,
    version      TEXT NOT NULL DEFAULT '',
    skew         BIGINT, -- milliseconds ahead of the server; NULL if not known
    generated    BIGINT NOT NULL DEFAULT 0,
    clients      BIGINT NOT NULL DEFAULT 0, -- that are not revoked; counted when they are announced
    token        TEXT NOT NULL DEFAULT '', -- id of the token with which it joined last
    most_clients BIGINT NOT NULL DEFAULT 0, -- of its token
    pattern      TEXT NOT NULL DEFAULT '', -- of its token
    protocol     BIGINT NOT NULL DEFAULT 0,
    serial       TEXT NOT NULL DEFAULT '', -- of the newest certificate that it has used
    issued       BIGINT NOT NULL DEFAULT 0, -- when that was issued
    switched     BIGINT NOT NULL DEFAULT 0, -- when it used that first
    previous     TEXT NOT NULL DEFAULT '', -- serial of the certificate that it used before
    pending      TEXT NOT NULL DEFAULT '', -- serial of a certificate that was issued and not used yet
    copied       BIGINT NOT NULL DEFAULT 0 -- when two machines were seen with its identity
);
CREATE INDEX agents_name ON agents (name);
CREATE INDEX agents_token ON agents (token, id);
CREATE INDEX agents_access ON agents (revoked, serial, issued, switched, previous, pending, most_clients, pattern, copied);

CREATE TABLE clients (
    name      TEXT PRIMARY KEY,
    agent     TEXT NOT NULL REFERENCES agents (id),
    inputs    TEXT NOT NULL, -- sorted, separated by spaces
    step      BIGINT NOT NULL, -- seconds
    announced BIGINT NOT NULL,
    revoked   BIGINT NOT NULL DEFAULT 0,
    freed     BIGINT NOT NULL DEFAULT 0 -- when an operator let other agents have it
);
CREATE INDEX clients_agent ON clients (agent);
CREATE INDEX clients_access ON clients (revoked, freed, step, inputs);

CREATE TABLE runs (
    id          TEXT PRIMARY KEY,
    name        TEXT NOT NULL,
    plan        TEXT NOT NULL, -- as submitted; settled once the run has begun
    plan_blob   TEXT NOT NULL DEFAULT '',
    state       TEXT NOT NULL,
    reason      TEXT NOT NULL DEFAULT '',
    wanted      BIGINT NOT NULL, -- number of clients to wait for
    fleet       BIGINT NOT NULL DEFAULT 0,
    created     BIGINT NOT NULL,
    started     BIGINT NOT NULL DEFAULT 0,
    finished    BIGINT NOT NULL DEFAULT 0,
    round       BIGINT NOT NULL DEFAULT 0, -- the open round
    version     BIGINT NOT NULL DEFAULT 0, -- the newest version
    batch       BIGINT NOT NULL DEFAULT 0, -- the newest batch; the row's lock makes batches follow the order of commits
    server      TEXT NOT NULL DEFAULT '', -- blob of fed/round.Server at the newest version
    remote      BIGINT NOT NULL DEFAULT 0, -- 1 if this is a region and a hub drives the run
    generated   BIGINT NOT NULL DEFAULT 0,
    left_out    TEXT NOT NULL DEFAULT '', -- which clients and inputs its fleet does not have, and why
    receipts    BIGINT NOT NULL DEFAULT 0, -- rows in the table receipts
    checksum    BIGINT NOT NULL DEFAULT 0,
    reason_code TEXT NOT NULL DEFAULT '' -- why a running run does not advance, for programs
);
CREATE INDEX runs_created ON runs (created);

-- A separate table, because every count writes the run's row, and the state is long if many clients train at a time.
CREATE TABLE machines (
    run      TEXT PRIMARY KEY REFERENCES runs (id),
    state    TEXT NOT NULL, -- fed/round.Machine, without receipts since it was saved
    checksum BIGINT NOT NULL DEFAULT 0
);

-- The fleet of a run, fixed when the run begins.
CREATE TABLE members (
    run      TEXT NOT NULL REFERENCES runs (id),
    no       BIGINT NOT NULL, -- from 0, in the order of names
    client   TEXT NOT NULL,
    checksum BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run, no)
);

CREATE TABLE versions (
    run         TEXT NOT NULL REFERENCES runs (id),
    version     BIGINT NOT NULL,
    weights     TEXT NOT NULL, -- blobs
    control     TEXT NOT NULL,
    server      TEXT NOT NULL DEFAULT '', -- blob of fed/round.Server at this version
    limits      BYTEA, -- Limits for updates from this version; NULL if there are none
    created     BIGINT NOT NULL DEFAULT 0,
    rolled_back BIGINT, -- the version whose weights these are; NULL if a merge made them
    checksum    BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run, version)
);
CREATE INDEX versions_weights ON versions (weights);
CREATE INDEX versions_control ON versions (control);
CREATE INDEX versions_server ON versions (server);

CREATE TABLE rounds (
    run          TEXT NOT NULL REFERENCES runs (id),
    round        BIGINT NOT NULL,
    version      BIGINT NOT NULL,
    state        TEXT NOT NULL,
    opened       BIGINT NOT NULL,
    closed       BIGINT NOT NULL DEFAULT 0,
    asked        BIGINT NOT NULL DEFAULT 0,
    counted      BIGINT NOT NULL DEFAULT 0,
    late         BIGINT NOT NULL DEFAULT 0,
    lost         BIGINT NOT NULL DEFAULT 0,
    loss         DOUBLE PRECISION NOT NULL DEFAULT 0,
    bytes        BIGINT NOT NULL DEFAULT 0,
    last_batch   BIGINT NOT NULL DEFAULT 0, -- the last batch that this round merges
    evaluated    BIGINT NOT NULL DEFAULT 0, -- clients
    relative_mae BIGINT NOT NULL DEFAULT 0, -- sum over these clients, in millionths
    checksum     BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run, round)
);

-- Permission to be counted. Counting an update deletes the row, and so does withdrawing the permission.
CREATE TABLE leases (
    run      TEXT NOT NULL,
    round    BIGINT NOT NULL,
    client   TEXT NOT NULL,
    no       BIGINT NOT NULL,
    agent    TEXT NOT NULL,
    version  BIGINT NOT NULL,
    until    BIGINT NOT NULL,
    latest   BIGINT NOT NULL DEFAULT 0, -- no extension goes beyond this; 0 means no limit
    checksum BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run, round, client)
);
CREATE INDEX leases_agent ON leases (agent);
CREATE INDEX leases_until ON leases (run, until);

-- Counted updates. Rows are never changed.
CREATE TABLE receipts (
    run          TEXT NOT NULL,
    round        BIGINT NOT NULL,
    client       TEXT NOT NULL,
    no           BIGINT NOT NULL,
    version      BIGINT NOT NULL,
    batch        BIGINT NOT NULL,
    examples     BIGINT NOT NULL,
    steps        BIGINT NOT NULL,
    train_loss   DOUBLE PRECISION NOT NULL,
    counted      BIGINT NOT NULL DEFAULT 0, -- when
    norm         DOUBLE PRECISION NOT NULL DEFAULT 0, -- of the update, after clipping
    control_norm DOUBLE PRECISION NOT NULL DEFAULT 0,
    checksum     BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run, round, client)
);
CREATE INDEX receipts_batch ON receipts (run, batch);

-- Sums of updates that are counted and not merged: one row for each batch and version. Rows are never changed: if the reply
-- to a commit is lost, a retry could add to a sum twice.
CREATE TABLE partials (
    run          TEXT NOT NULL,
    batch        BIGINT NOT NULL,
    version      BIGINT NOT NULL,
    numbers      BYTEA NOT NULL,
    evaluated    BIGINT NOT NULL DEFAULT 0,
    relative_mae BIGINT NOT NULL DEFAULT 0,
    checksum     BIGINT NOT NULL DEFAULT 0,
    PRIMARY KEY (run, batch, version)
);

-- Updates that are not merged, for plans that need each update.
CREATE TABLE updates (
    run          TEXT NOT NULL,
    batch        BIGINT NOT NULL,
    client       TEXT NOT NULL,
    version      BIGINT NOT NULL,
    examples     BIGINT NOT NULL,
    steps        BIGINT NOT NULL,
    loss         DOUBLE PRECISION NOT NULL,
    numbers      BYTEA NOT NULL,
    evaluated    BIGINT NOT NULL DEFAULT 0,
    relative_mae BIGINT NOT NULL DEFAULT 0,
    checksum     BIGINT NOT NULL DEFAULT 0,
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

-- Which process leads in a role, and until when.
CREATE TABLE leaders (
    role   TEXT PRIMARY KEY,
    holder TEXT NOT NULL,
    epoch  BIGINT NOT NULL,
    until  BIGINT NOT NULL,
    data   TEXT NOT NULL DEFAULT '' -- fingerprint of the holder's data; empty if it has none
);

CREATE TABLE audit (
    id      TEXT PRIMARY KEY, -- sorts by time
    at      BIGINT NOT NULL,
    actor   TEXT NOT NULL,
    action  TEXT NOT NULL,
    subject TEXT NOT NULL,
    detail  TEXT NOT NULL
);
CREATE INDEX audit_actor ON audit (actor, id);
CREATE INDEX audit_action ON audit (action, id);

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
    checksum  BIGINT NOT NULL DEFAULT 0,
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

-- A table of the ledger and not a blob, because agents may fetch blobs.
CREATE TABLE server_data (
    run         TEXT PRIMARY KEY REFERENCES runs (id),
    fingerprint TEXT NOT NULL, -- of the data with which the run began
    kept        BYTEA NOT NULL, -- the server's personal layers at the run's newest version; empty at version 0
    checksum    BIGINT NOT NULL DEFAULT 0
);

-- Clients that a run holds out. After the run they adapt its weights, and report their errors as sums.
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

CREATE TABLE users (
    name    TEXT PRIMARY KEY,
    role    TEXT NOT NULL, -- viewer, operator or admin
    source  TEXT NOT NULL, -- server, admin or oidc
    subject TEXT NOT NULL DEFAULT '', -- of a user of an OIDC provider: its issuer and subject, hashed
    created BIGINT NOT NULL
);
CREATE INDEX users_subject ON users (subject);
CREATE INDEX users_access ON users (role, source, name);
-- The server writes a certificate of this user to its own folder.
INSERT INTO users (name, role, source, created) VALUES ('local', 'admin', 'server', 0);

-- Codes that open one session.
CREATE TABLE logins (
    hash    BYTEA PRIMARY KEY, -- hash of the code, which is not stored
    person  TEXT NOT NULL REFERENCES users (name),
    expires BIGINT NOT NULL
);
CREATE INDEX logins_person ON logins (person);
CREATE INDEX logins_expires ON logins (expires);

CREATE TABLE sessions (
    id      TEXT PRIMARY KEY, -- for people; it gives no access
    hash    BYTEA NOT NULL UNIQUE, -- hash of the cookie, which is not stored
    person  TEXT NOT NULL REFERENCES users (name),
    via     TEXT NOT NULL, -- login or oidc
    created BIGINT NOT NULL,
    expires BIGINT NOT NULL
);
CREATE INDEX sessions_person ON sessions (person);
CREATE INDEX sessions_expires ON sessions (expires);

-- Operators' certificates. One that is not here is refused.
CREATE TABLE certificates (
    serial  TEXT PRIMARY KEY, -- hexadecimal
    person  TEXT NOT NULL REFERENCES users (name),
    issued  BIGINT NOT NULL,
    expires BIGINT NOT NULL,
    revoked BIGINT NOT NULL DEFAULT 0,
    renews  TEXT NOT NULL DEFAULT '' -- serial of the first of the certificates that were renewed one after the other
);
CREATE INDEX certificates_person ON certificates (person);
CREATE INDEX certificates_expires ON certificates (expires);
CREATE INDEX certificates_renews ON certificates (renews);
CREATE INDEX certificates_access ON certificates (revoked, serial);

-- The findings in the newest report of each client. Codes that this version does not know are left out.
CREATE TABLE findings (
    code   TEXT NOT NULL,
    client TEXT NOT NULL,
    PRIMARY KEY (code, client)
);
CREATE INDEX findings_client ON findings (client);

-- Turns that agents declined or that were lost, until the run is deleted.
CREATE TABLE declines (
    run    TEXT NOT NULL,
    round  BIGINT NOT NULL,
    client TEXT NOT NULL,
    agent  TEXT NOT NULL,
    code   TEXT NOT NULL, -- kind of the reason; lost if the lease expired
    reason TEXT NOT NULL,
    at     BIGINT NOT NULL,
    PRIMARY KEY (run, round, client)
);
CREATE INDEX declines_client ON declines (client, at);

-- Secrets that all processes of this server share.
CREATE TABLE secrets (
    name  TEXT PRIMARY KEY,
    value BYTEA NOT NULL
);

-- Signed statements about which weights the versions of a run have, for as long as the run's members are stored. Versions
-- themselves are deleted earlier.
CREATE TABLE heads (
    run       TEXT NOT NULL,
    version   BIGINT NOT NULL,
    weights   TEXT NOT NULL, -- blob
    previous  BYTEA NOT NULL, -- hash of the head before; empty if there is none
    signature BYTEA NOT NULL, -- also the checksum of the row
    PRIMARY KEY (run, version)
);

-- How far each of several processes has counted. A process writes its own row, so that processes do not wait for each other.
CREATE TABLE counters (
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

-- Numbers that grow when something changes of which gateways have a copy in memory.
CREATE TABLE stamps (
    name  TEXT PRIMARY KEY, -- revocations, or leases and a run
    stamp BIGINT NOT NULL
);

-- Rounds of private plans.
CREATE TABLE private_rounds (
    run      TEXT NOT NULL,
    round    BIGINT NOT NULL,
    privacy  BYTEA NOT NULL, -- what the round's tasks say: statements of keepers and the day
    request  BYTEA NOT NULL, -- to the keepers; empty until the round has closed
    refused  TEXT NOT NULL, -- the rule by which a keeper refused
    checksum BIGINT NOT NULL,
    PRIMARY KEY (run, round)
);

-- Masked results that are counted and not merged. A nonce and the keeper's key of its agent give the mask of a result.
CREATE TABLE masks (
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
CREATE INDEX masks_batch ON masks (run, batch);

-- The newest epoch that each keeper has signed, and the time of its last answer. A keeper whose epoch goes back is a copy, or was restored.
CREATE TABLE keepers (
    identity TEXT PRIMARY KEY,
    epoch    BIGINT NOT NULL,
    answered BIGINT NOT NULL
);
