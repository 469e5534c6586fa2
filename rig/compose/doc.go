// Package compose starts the services of deploy/compose.yaml as processes, without containers, and
// trains a run with them. It has tests only: make compose-test.
//
// Commands, environment, volumes, secrets and the command that creates the token come from the
// file. What the containers' network and disks would do is replaced: the names of services and
// their ports become ports of this machine, and paths of volumes and secrets become folders. The
// programs of the images are the built product, Debian's PostgreSQL and Prometheus, and gofakes3 in
// place of the S3 store. There is no Grafana: the test asks Prometheus for what its dashboards ask.
package compose
