// Package compose starts the services of deploy/compose.yaml as processes, without containers, and
// trains a run with them. It contains only tests; run them with make compose-test.
//
// Commands, environment, volumes, secrets and the command that creates the token come from the
// file. The containers' network and disks are replaced: names of services and their ports become
// ports of this machine, and paths of volumes and secrets become folders. The images' programs are
// the built product, Debian's PostgreSQL and Prometheus, and gofakes3 in place of the S3 store.
// Grafana does not run; the test itself sends the queries of its dashboards to Prometheus.
package compose
