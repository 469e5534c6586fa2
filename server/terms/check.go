package terms

import "loadstar/fed/round"

// Check says why Add would refuse a result.
func (t *Terms) Check(r *Result) error {
	f, ok := t.spare.Get().(*round.Fold)
	if !ok {
		f = round.NewFold(t.Rules)
	}
	err := t.Add(f, r, nil)
	f.Reset()
	t.spare.Put(f)
	return err
}
