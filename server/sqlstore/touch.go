package sqlstore

import "context"

// Touch changes the stamp with the given name.
func Touch(ctx context.Context, tx *Txn, name string) error {
	_, err := tx.ExecContext(ctx, "INSERT INTO stamps (name, stamp) VALUES ($1, 1) ON CONFLICT (name) DO UPDATE SET stamp = stamps.stamp + 1", name)
	return err
}
