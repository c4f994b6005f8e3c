package tooffline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/tidemark-im/tidemark/watermark"
)

// ErrGone is returned for a device whose token is not good any more.
var ErrGone = errors.New("the device is not registered with its vendor any more")

// EachDevice is the Send of an endpoint that notifies devices one by one. What
// was taken, and what never will be, is not attempted again; the error is that of
// a device that is to be tried again where there is one, else of one that
// refused.
func EachDevice(ctx context.Context, n *Notification, send func(context.Context, watermark.Device) error) error {
	var again, refused error
	for _, d := range n.Devices {
		if ctx.Err() != nil {
			return cmp.Or(again, fmt.Errorf("device %s: %w", d.ID, ctx.Err()))
		}
		err := send(ctx, d)
		said, _ := errors.AsType[*SendError](err)
		switch {
		case err == nil:
			n.Told(d)
		case errors.Is(err, ErrGone):
			n.Gone(d)
		case said != nil && said.Final:
			n.Refused(d)
			refused = fmt.Errorf("device %s: %w", d.ID, err)
		default:
			again = fmt.Errorf("device %s: %w", d.ID, err)
		}
	}
	return cmp.Or(again, refused)
}

// Shown gives what a device shows: what the message says, else its sender's id
// and the beginning of its text, where the deployment sends any.
func (n *Notification) Shown() (title, body string) {
	title = cmp.Or(n.Latest.Title, string(n.Latest.Sender))
	return title, cmp.Or(n.Latest.Body, n.Latest.Text, "New message")
}

// Fields gives what an application on a device needs to go on from.
func (n *Notification) Fields() map[string]string {
	return map[string]string{
		"id": n.ID, "conversation": string(n.Conversation), "user": string(n.User), "sender": string(n.Latest.Sender),
		"first_seq": n.First.String(), "last_seq": n.Last.String(), "messages": strconv.Itoa(n.Messages),
		"unread": strconv.FormatInt(n.Unread, 10), "badge": strconv.FormatInt(n.Badge, 10), "mentioned": strconv.FormatBool(n.Mentioned),
	}
}
