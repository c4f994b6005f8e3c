package stack_test

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"strings"
	"testing"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/internal/config"
)

// The largest body that can be configured goes the whole way, however it comes
// in, and one byte more is refused with its reason.
func TestTheLargestBodyGoesTheWholeWay(t *testing.T) {
	const most = 1 << 20
	r := startAll(t, func(c *config.Config) { c.Limits.MaxBody = most })
	const c = "group:big"
	body := bytes.Repeat([]byte{0xff}, most)
	r.produce(c, fmt.Sprintf(`{"conversation":%q,"sender":"A","clientMessageId":"json","data":%q}`, c, base64.StdEncoding.EncodeToString(body)))
	if seq := r.sendBody(c, "A", "binary", body); seq != 2 {
		t.Errorf("seq of the second = %d, want 2", seq)
	}
	for _, flush := range []bool{false, true} {
		if flush {
			r.settle()
			r.flush()
		}
		msgs := r.pullAll("A", c, 1, 10)
		wantSeqs(t, msgs, 1, 2)
		for _, m := range msgs {
			if !bytes.Equal(m.GetData(), body) {
				t.Errorf("flushed %v: seq %d has %d bytes", flush, m.GetSeq(), len(m.GetData()))
			}
		}
	}
	r.produce(c, fmt.Sprintf(`{"conversation":%q,"sender":"A","data":%q}`, c, base64.StdEncoding.EncodeToString(append(body, 0))))
	r.settle()
	d := r.deadLetters()
	if len(d) != 1 || d[0].Reason != "too_large" || !strings.Contains(d[0].Cause, "1048577") {
		t.Errorf("dead letters of one byte more: %d %.200v", len(d), d)
	}
}

func (r *rig) sendBody(conv, sender, id string, body []byte) int64 {
	r.t.Helper()
	res, err := r.svc.Send(r.ctx(), &tidemarkv1.SendRequest{WaitForSeq: true, Message: &tidemarkv1.SendMessage{
		Conversation: conv, Sender: sender, ClientMessageId: id, Body: &tidemarkv1.SendMessage_Data{Data: body},
	}})
	if err != nil {
		r.t.Fatalf("send %s: %v", id, err)
	}
	return res.GetSeq()
}
