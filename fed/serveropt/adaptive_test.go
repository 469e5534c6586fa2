package serveropt

import "testing"

// TestAdaptivePython takes twenty steps with three weights and compares the weights with
// those of a Python script. The script computes in float64 and rounds weights to float32
// with the module struct:
//
//	m[i] = b1*m[i] + (1-b1)*d
//	q = (m[i] if of_momentum else d)**2
//	adagrad: v[i] = v[i] + q
//	adam:    v[i] = b2*v[i] + (1-b2)*q
//	yogi:    v[i] = v[i] - (1-b2)*q*((v[i]>q)-(v[i]<q))
//	phi[i] = f32(phi[i] + rate*m[i]/(math.sqrt(v[i])+tau))
//
// with the defaults of reddi2021 and a rate of .01.
func TestAdaptivePython(t *testing.T) {
	for _, c := range []struct {
		name   string
		rule   Rule
		moment SecondMoment
		want   [3]float64
	}{
		{"adagrad", Adagrad, OfUpdate, [3]float64{0.09606979042291641, -0.21035079658031464, 0.3064999282360077}},
		{"adagrad", Adagrad, OfMomentum, [3]float64{0.06824242323637009, -0.2592749297618866, 0.34456828236579895}},
		{"adam", Adam, OfUpdate, [3]float64{0.06457158178091049, -0.307943195104599, 0.36338838934898376}},
		{"adam", Adam, OfMomentum, [3]float64{-0.11086566001176834, -0.8115684390068054, 0.6542216539382935}},
		{"yogi", Yogi, OfUpdate, [3]float64{0.06340432912111282, -0.30621352791786194, 0.3630580008029938}},
		{"yogi", Yogi, OfMomentum, [3]float64{-0.11455623805522919, -0.8051987886428833, 0.6532688736915588}},
	} {
		o := &Adaptive{Rule: c.rule, Rate: .01, Beta1: .9, Beta2: .99, Tau: 1e-3, SecondMoment: c.moment}
		phi, d := []float32{.1, -.2, .3}, make([]float64, 3)
		for t := 1; t <= 20; t++ {
			for i := range d {
				d[i] = float64((t*t*31+7*t+13*i)%97)/97 - .5
			}
			o.Step(phi, d)
		}
		for i := range phi {
			if float64(phi[i]) != c.want[i] {
				t.Errorf("%s: %v, want %v", c.name, phi, c.want)
				break
			}
		}
	}
}

func TestAdaptivePanics(t *testing.T) {
	for name, o := range map[string]*Adaptive{
		"no rule":      {Tau: 1},
		"no tau":       {Rule: Adam},
		"negative tau": {Rule: Adam, Tau: -1},
	} {
		wantPanic(t, name, func() { o.Step([]float32{1}, []float64{1}) })
	}
}
