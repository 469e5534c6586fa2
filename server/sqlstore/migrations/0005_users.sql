-- Users with their sessions and certificates, and what the dashboard shows of agents and turns.

-- +goose Up
CREATE TABLE users (
    name    TEXT PRIMARY KEY,
    role    TEXT NOT NULL, -- viewer, operator or admin
    source  TEXT NOT NULL, -- server, admin or oidc
    subject TEXT NOT NULL DEFAULT '', -- of a user of an OIDC provider: its issuer and subject, hashed
    created BIGINT NOT NULL
);
CREATE INDEX users_subject ON users (subject);
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
    revoked BIGINT NOT NULL DEFAULT 0
);
CREATE INDEX certificates_person ON certificates (person);
CREATE INDEX certificates_expires ON certificates (expires);

ALTER TABLE agents ADD COLUMN version TEXT NOT NULL DEFAULT '';
ALTER TABLE agents ADD COLUMN skew BIGINT; -- milliseconds ahead of the server; NULL if not known
ALTER TABLE agents ADD COLUMN generated BIGINT NOT NULL DEFAULT 0;
ALTER TABLE agents ADD COLUMN clients BIGINT NOT NULL DEFAULT 0; -- that are not revoked; counted when they are announced
UPDATE agents SET clients = (SELECT count(*) FROM clients c WHERE c.agent = agents.id AND c.revoked = 0);
CREATE INDEX agents_name ON agents (name);
ALTER TABLE receipts ADD COLUMN counted BIGINT NOT NULL DEFAULT 0; -- when
ALTER TABLE runs ADD COLUMN generated BIGINT NOT NULL DEFAULT 0;
ALTER TABLE tokens ADD COLUMN used BIGINT NOT NULL DEFAULT 0; -- when an agent joined with it last
CREATE INDEX audit_actor ON audit (actor, id);
CREATE INDEX audit_action ON audit (action, id);

-- The findings in the newest report of each client. Codes that this version does not know are left out.
CREATE TABLE findings (
    code   TEXT NOT NULL,
    client TEXT NOT NULL,
    PRIMARY KEY (code, client)
);
CREATE INDEX findings_client ON findings (client);

-- +goose Down
DROP TABLE findings;
DROP INDEX audit_action;
DROP INDEX audit_actor;
ALTER TABLE tokens DROP COLUMN used;
DROP INDEX agents_name;
ALTER TABLE agents DROP COLUMN clients;
ALTER TABLE runs DROP COLUMN generated;
ALTER TABLE receipts DROP COLUMN counted;
ALTER TABLE agents DROP COLUMN generated;
ALTER TABLE agents DROP COLUMN skew;
ALTER TABLE agents DROP COLUMN version;
DROP TABLE certificates;
DROP TABLE sessions;
DROP TABLE logins;
DROP TABLE users;
