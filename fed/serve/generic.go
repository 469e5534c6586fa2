package serve

import (
	_ "embed"
	"encoding/binary"
	"fmt"
	"math"
	"time"

	"loadstar/fed"
	"loadstar/fed/recipe"
	"loadstar/nn/kernel"
)

// GenericName is the name of the model in forecasts.
const GenericName = "generic@1"

//go:embed generic.yaml
var plan []byte

// weights contains the shared layers as little-endian float16, which is half the size of
// float32. All scores in the model card use these weights.
//
//go:embed generic.f16
var weights []byte

// GenericPlan returns the plan of the model.
func GenericPlan() (*fed.Plan, error) {
	p, err := recipe.Read(plan)
	if err != nil {
		return nil, err
	}
	return recipe.Resolve(p, time.Hour)
}

// NewGeneric returns the model.
func NewGeneric(k *kernel.Set) (*Model, error) { return DecodeGeneric(weights, k) }

// DecodeGeneric returns the model with weights that [EncodeGeneric] returned.
func DecodeGeneric(weights []byte, k *kernel.Set) (*Model, error) {
	p, err := GenericPlan()
	if err != nil {
		return nil, err
	}
	shared := make([]float32, len(weights)/2)
	for i := range shared {
		shared[i] = fromHalf(binary.LittleEndian.Uint16(weights[2*i:]))
	}
	m, err := newYoung(GenericName, p, shared, k, wider)
	if err != nil {
		return nil, fmt.Errorf("the generic model: %w", err)
	}
	return m, nil
}

// EncodeGeneric returns shared weights encoded as float16.
func EncodeGeneric(shared []float32) []byte {
	var b []byte
	for _, v := range shared {
		b = binary.LittleEndian.AppendUint16(b, toHalf(v))
	}
	return b
}

// wider returns the factor by which intervals are widened if the readings cover the given
// number of days.
func wider(days float64) float64 { return 1 + 0.13*max(1-days/4, 0) }

// fromHalf returns the value of a finite float16.
func fromHalf(h uint16) float32 {
	sign, exponent, fraction := uint32(h)>>15, int(h)>>10&31, uint32(h)&1023
	v := math.Ldexp(float64(fraction|1024), exponent-25)
	if exponent == 0 {
		v = math.Ldexp(float64(fraction), -24)
	}
	if sign != 0 {
		v = -v
	}
	return float32(v)
}

// toHalf returns the nearest float16, or the largest float16 of the same sign if the value is
// beyond its range.
func toHalf(v float32) uint16 {
	x := math.Abs(float64(v))
	h := uint16(0)
	switch fraction, exponent := math.Frexp(x); {
	case x >= 65504:
		h = 0x7bff
	case x == 0 || exponent < -13: // below the smallest normal number, 2^-14
		h = uint16(math.RoundToEven(math.Ldexp(x, 24)))
	default:
		h = uint16(exponent+13)<<10 + uint16(math.RoundToEven(math.Ldexp(fraction, 11))) // the leading 1 adds one to the exponent
	}
	if math.Signbit(float64(v)) {
		h |= 1 << 15
	}
	return h
}
