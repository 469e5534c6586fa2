package protocol

import "hash/crc32"

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksum returns the checksum of the numbers of a result. It detects faults of disks and memory;
// TLS protects the numbers in transit.
func Checksum(numbers []byte) uint32 { return crc32.Checksum(numbers, castagnoli) }
