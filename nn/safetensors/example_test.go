package safetensors_test

import (
	"bytes"
	"fmt"
	"log"

	"loadstar/nn/safetensors"
)

// This example writes a tensor and reads it back.
func Example() {
	var file bytes.Buffer
	weights := []safetensors.Tensor{{Name: "head.weight", Shape: []int{1, 3}, Data: []float32{0.5, -1, 2}}}
	if err := safetensors.Write(&file, weights, map[string]string{"model": "demo"}); err != nil {
		log.Fatal(err)
	}
	const limit = 1 << 20 // bytes to read at most
	tensors, metadata, err := safetensors.Read(&file, limit)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range tensors {
		fmt.Println(t.Name, t.Shape, t.Data, metadata["model"])
	}
	// Output:
	// head.weight [1 3] [0.5 -1 2] demo
}
