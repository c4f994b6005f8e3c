package history

import (
	"context"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/tidemark-im/tidemark/watermark"
)

// deviceDoc is a device that can be notified. Its _id is the token's, so that a
// token can never be two users'.
type deviceDoc struct {
	Key      bson.Binary `bson:"_id"`
	User     string      `bson:"u"`
	Device   string      `bson:"d"`
	Platform string      `bson:"p"`
	Token    string      `bson:"t"`
	At       int64       `bson:"at"`
}

func deviceKey(k watermark.DeviceKey) bson.Binary { return bson.Binary{Data: k[:]} }

func (d *deviceDoc) row() watermark.DeviceRow {
	return watermark.DeviceRow{User: watermark.UserID(d.User), Device: watermark.Device{
		ID: d.Device, Platform: watermark.Platform(d.Platform), Token: d.Token, RegisteredAt: d.At,
	}}
}

// PutDevice registers a device of user, and lets go what is surplus then. A
// process that dies in between leaves surplus to the next registration, which
// DevicesOf does not give.
func (s *Store) PutDevice(ctx context.Context, user watermark.UserID, d watermark.Device) (err error) {
	defer s.done("put_device", time.Now(), &err)
	key := deviceKey(d.Key())
	// Where a later one stands the filter meets nothing, and the insert its _id.
	_, err = s.devices.UpdateOne(ctx,
		bson.D{{Key: "_id", Value: key}, {Key: "at", Value: bson.D{{Key: "$lte", Value: d.RegisteredAt}}}},
		bson.D{{Key: "$set", Value: bson.D{
			{Key: "u", Value: user}, {Key: "d", Value: d.ID}, {Key: "p", Value: d.Platform}, {Key: "t", Value: d.Token}, {Key: "at", Value: d.RegisteredAt},
		}}}, options.UpdateOne().SetUpsert(true))
	if mongo.IsDuplicateKeyError(err) {
		// Or another process has just registered the same token for the first time;
		// by then it stands, and the filter decides.
		_, err = s.devices.UpdateOne(ctx,
			bson.D{{Key: "_id", Value: key}, {Key: "at", Value: bson.D{{Key: "$lte", Value: d.RegisteredAt}}}},
			bson.D{{Key: "$set", Value: bson.D{{Key: "u", Value: user}, {Key: "d", Value: d.ID}, {Key: "at", Value: d.RegisteredAt}}}})
	}
	if err != nil {
		return fmt.Errorf("register device of %s: %w", user, err)
	}
	all, err := s.devicesOf(ctx, user)
	if err != nil {
		return err
	}
	for _, x := range watermark.SurplusDevices(all) {
		// Unless it was registered anew meanwhile.
		filter := bson.D{{Key: "_id", Value: deviceKey(x.Key())}, {Key: "u", Value: user}, {Key: "at", Value: x.RegisteredAt}}
		if _, err := s.devices.DeleteOne(ctx, filter); err != nil {
			return fmt.Errorf("let go a device of %s: %w", user, err)
		}
	}
	return nil
}

// DropDevice takes the registration of user under id away, with a token only if
// it is that one.
func (s *Store) DropDevice(ctx context.Context, user watermark.UserID, id, token string) (dropped bool, err error) {
	defer s.done("drop_device", time.Now(), &err)
	filter := bson.D{{Key: "u", Value: user}, {Key: "d", Value: id}}
	if token != "" {
		filter = append(filter, bson.E{Key: "t", Value: token})
	}
	res, err := s.devices.DeleteMany(ctx, filter)
	if err != nil {
		return false, fmt.Errorf("drop device of %s: %w", user, err)
	}
	return res.DeletedCount > 0, nil
}

// DevicesOf gives user's devices, by id.
func (s *Store) DevicesOf(ctx context.Context, user watermark.UserID) (out []watermark.Device, err error) {
	defer s.done("devices", time.Now(), &err)
	all, err := s.devicesOf(ctx, user)
	if err != nil {
		return nil, err
	}
	surplus := make(map[watermark.DeviceKey]bool)
	for _, d := range watermark.SurplusDevices(slices.Clone(all)) {
		surplus[d.Key()] = true
	}
	for _, d := range all {
		if !surplus[d.Key()] {
			out = append(out, d)
		}
	}
	return out, nil
}

func (s *Store) devicesOf(ctx context.Context, user watermark.UserID) (out []watermark.Device, err error) {
	opts := options.Find().SetSort(bson.D{{Key: "u", Value: 1}, {Key: "d", Value: 1}})
	err = each(ctx, s.devices.newest, bson.D{{Key: "u", Value: user}}, opts, func(d *deviceDoc) error {
		out = append(out, d.row().Device)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("read devices of %s: %w", user, err)
	}
	return out, nil
}

// ScanDevices gives the devices of all users above after, by key, at most limit.
func (s *Store) ScanDevices(ctx context.Context, after watermark.DeviceKey, limit int) (out []watermark.DeviceRow, err error) {
	defer s.done("scan", time.Now(), &err)
	limit = min(limit, watermark.MaxPage)
	if limit <= 0 {
		return nil, nil
	}
	var last watermark.DeviceKey
	for i := range last {
		last[i] = 0xff
	}
	filter := bson.D{{Key: "_id", Value: bson.D{{Key: "$gt", Value: deviceKey(after)}, {Key: "$lte", Value: deviceKey(last)}}}}
	opts := options.Find().SetSort(byID).SetLimit(int64(limit)).SetBatchSize(int32(limit))
	err = each(ctx, s.devices.Collection, filter, opts, func(d *deviceDoc) error {
		out = append(out, d.row())
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("scan devices: %w", err)
	}
	return out, nil
}
