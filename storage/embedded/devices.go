package embedded

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/tidemark-im/tidemark/watermark"
)

// PutDevice registers a device of user, and lets go what is surplus then.
func (s *Store) PutDevice(ctx context.Context, user watermark.UserID, d watermark.Device) (err error) {
	defer s.metrics.done("put_device", time.Now(), &err)
	err = s.inTx(ctx, func(t *txn) error {
		key := d.Key()
		if _, err := t.exec(qPutDevice, key[:], user, d.ID, d.Platform, d.Token, d.RegisteredAt); err != nil {
			return err
		}
		rows, err := t.stmt(qOwnDevices).QueryContext(ctx, user)
		if err != nil {
			return err
		}
		all, err := scanDevices(rows)
		if err != nil {
			return err
		}
		devices := make([]watermark.Device, len(all))
		for i := range all {
			devices[i] = all[i].Device
		}
		for _, d := range watermark.SurplusDevices(devices) {
			key := d.Key()
			if _, err := t.exec(qCutDevice, key[:]); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("register device of %s: %w", user, err)
	}
	return nil
}

// DropDevice takes the registration of user under id away, with a token only if
// it is that one.
func (s *Store) DropDevice(ctx context.Context, user watermark.UserID, id, token string) (dropped bool, err error) {
	defer s.metrics.done("drop_device", time.Now(), &err)
	err = s.inTx(ctx, func(t *txn) error {
		n, err := t.exec(qDropDevice, user, id, token)
		dropped = n > 0
		return err
	})
	if err != nil {
		return false, fmt.Errorf("drop device of %s: %w", user, err)
	}
	return dropped, nil
}

// DevicesOf gives user's devices, by id.
func (s *Store) DevicesOf(ctx context.Context, user watermark.UserID) (out []watermark.Device, err error) {
	defer s.metrics.done("devices", time.Now(), &err)
	rows, err := s.query(ctx, qDevices, user)
	if err != nil {
		return nil, err
	}
	all, err := scanDevices(rows)
	for _, r := range all {
		out = append(out, r.Device)
	}
	return out, err
}

// ScanDevices gives the devices of all users above after, by key, at most limit.
func (s *Store) ScanDevices(ctx context.Context, after watermark.DeviceKey, limit int) (out []watermark.DeviceRow, err error) {
	defer s.metrics.done("scan", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	rows, err := s.query(ctx, qScanDevices, after[:], limit)
	if err != nil {
		return nil, err
	}
	return scanDevices(rows)
}

func scanDevices(rows *sql.Rows) (out []watermark.DeviceRow, err error) {
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		var r watermark.DeviceRow
		if err := rows.Scan(&r.User, &r.Device.ID, &r.Device.Platform, &r.Device.Token, &r.Device.RegisteredAt); err != nil {
			return nil, fmt.Errorf("read device: %w", err)
		}
		out = append(out, r)
	}
	return out, rows.Err()
}
