package transfer

import (
	"context"
	"fmt"
	"slices"

	"github.com/tidemark-im/tidemark/watermark"
)

func devicesOf(ctx context.Context, s Source, page int) *stream[watermark.DeviceRow] {
	return &stream[watermark.DeviceRow]{fetch: func(last *watermark.DeviceRow) ([]watermark.DeviceRow, error) {
		var after watermark.DeviceKey
		if last != nil {
			after = last.Device.Key()
		}
		return Patiently(ctx, func() ([]watermark.DeviceRow, error) { return s.ScanDevices(ctx, after, page) })
	}}
}

func compareDevices(a, b *watermark.DeviceRow) int {
	ka, kb := a.Device.Key(), b.Device.Key()
	return slices.Compare(ka[:], kb[:])
}

// copyDevices registers the devices that the target lacks or has older. One that
// the target alone has stays: it may have been registered there.
func (c *copier) copyDevices(ctx context.Context) error {
	return join(devicesOf(ctx, c.From, c.page()), devicesOf(ctx, c.To, c.page()), compareDevices, func(from, to *watermark.DeviceRow) error {
		if from == nil || to != nil && to.Device.RegisteredAt >= from.Device.RegisteredAt {
			return nil
		}
		_, err := Patiently(ctx, func() (struct{}, error) { return struct{}{}, c.To.PutDevice(ctx, from.User, from.Device) })
		if err != nil {
			return fmt.Errorf("write a device of %s to the target: %w", from.User, err)
		}
		c.written.Devices++
		return nil
	})
}

// devices compares devices. A difference shows no token.
func (c *comparer) devices(ctx context.Context) error {
	return join(devicesOf(ctx, c.From, c.page()), devicesOf(ctx, c.To, c.page()), compareDevices, func(from, to *watermark.DeviceRow) error {
		d := Difference{Kind: "device"}
		if from != nil {
			c.from.add(deviceText(from))
			c.report.From.Devices++
			d.User = from.User
		}
		if to != nil {
			c.to.add(deviceText(to))
			c.report.To.Devices++
			d.User = to.User
		}
		switch {
		case from == nil:
			d.Detail = fmt.Sprintf("device %s is in the target only", to.Device.ID)
		case to == nil:
			d.Detail = fmt.Sprintf("device %s is missing in the target", from.Device.ID)
		case *from != *to:
			d.Detail = fmt.Sprintf("device %s of %s since %d in the source, %s of %s since %d in the target",
				from.Device.ID, from.User, from.Device.RegisteredAt, to.Device.ID, to.User, to.Device.RegisteredAt)
		default:
			return nil
		}
		c.differs(d)
		return nil
	})
}
