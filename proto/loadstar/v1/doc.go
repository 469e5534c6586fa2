// Package loadstarv1 is the wire: what agents, operators and the server's parts say
// to each other. All of it but this file and the .proto files is generated, by make
// generate.
package loadstarv1
