//go:build unix

package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tidemark-im/tidemark/internal/chaos/history"
)

// api calls the sync service as any HTTP client does: JSON, and nothing of ours.
type api struct {
	c    *cluster
	http *http.Client
}

// callTimeout is more than a call waits for an owner by itself.
const callTimeout = 15 * time.Second

func newAPI(c *cluster) *api {
	return &api{c: c, http: &http.Client{Timeout: callTimeout, Transport: &http.Transport{MaxIdleConnsPerHost: 32}}}
}

// call asks one of the sync workers.
func (a *api) call(ctx context.Context, method string, req, res any) error {
	ws := a.c.ofRole("sync")
	if len(ws) == 0 {
		return errors.New("no sync worker")
	}
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	url := "http://" + ws[rand.IntN(len(ws))].listen + "/tidemark.v1.SyncService/" + method
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, bytes.NewReader(body))
	if err != nil {
		return err
	}
	r.Header.Set("Content-Type", "application/json")
	answer, err := a.http.Do(r)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", answer.Status, bytes.TrimSpace(text))
	}
	if err := json.Unmarshal(text, res); err != nil {
		return fmt.Errorf("%s answered %q: %w", method, text, err)
	}
	return nil
}

// number is an int64, which protobuf's JSON writes as a string.
type number int64

func (n *number) UnmarshalJSON(b []byte) error {
	v, err := strconv.ParseInt(strings.Trim(string(b), `"`), 10, 64)
	*n = number(v)
	return err
}

type rangeJSON struct {
	Begin number `json:"begin"`
	End   number `json:"end"`
}

func (r *rangeJSON) op() *history.Range {
	if r == nil {
		return nil
	}
	return &history.Range{Begin: int64(r.Begin), End: int64(r.End)}
}

type errorJSON struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

type pageJSON struct {
	Conversation string        `json:"conversation"`
	MinSeq       number        `json:"minSeq"`
	MaxSeq       number        `json:"maxSeq"`
	Messages     []messageJSON `json:"messages"`
	Covered      *rangeJSON    `json:"covered"`
	Rest         *rangeJSON    `json:"rest"`
	IsEnd        bool          `json:"isEnd"`
	RepairNumber number        `json:"repairNumber"`
	Error        *errorJSON    `json:"error"`
}

type messageJSON struct {
	Seq    number `json:"seq"`
	Sender string `json:"sender"`
	ID     string `json:"clientMessageId"`
	Text   string `json:"text"`

	Revoked bool `json:"revoked"`
}

func (p *pageJSON) op() *history.Page {
	out := &history.Page{
		Min: int64(p.MinSeq), Max: int64(p.MaxSeq), Covered: p.Covered.op(), Rest: p.Rest.op(),
		IsEnd: p.IsEnd, Repair: int64(p.RepairNumber),
	}
	for _, m := range p.Messages {
		out.Messages = append(out.Messages, history.Message{Seq: int64(m.Seq), Sender: m.Sender, ID: m.ID, Text: m.Text, Revoked: m.Revoked})
	}
	return out
}

type pullRange struct {
	Conversation string `json:"conversation"`
	Begin        int64  `json:"begin"`
	End          int64  `json:"end"`
	Num          int64  `json:"num,omitempty"`
	Order        string `json:"order,omitempty"`
	Keep         string `json:"keep,omitempty"`
}

// pull asks for ranges and notes a page for each.
func (a *api) pull(ctx context.Context, phase, user string, ranges ...pullRange) ([]*history.Page, error) {
	t0 := a.c.hist.Now()
	var res struct {
		Pages []pageJSON `json:"pages"`
	}
	err := a.call(ctx, "Pull", map[string]any{"user": user, "ranges": ranges}, &res)
	if err == nil && len(res.Pages) != len(ranges) {
		err = fmt.Errorf("%d pages for %d ranges", len(res.Pages), len(ranges))
	}
	t1 := a.c.hist.Now()
	out := make([]*history.Page, len(ranges))
	for i, r := range ranges {
		op := history.Op{
			Kind: history.Pull, Phase: phase, T0: t0, T1: t1, User: user, Conversation: r.Conversation,
			Begin: r.Begin, End: r.End, Desc: r.Order == "ORDER_DESC",
		}
		switch {
		case err != nil:
			op.Err = err.Error()
		case res.Pages[i].Error != nil:
			e := res.Pages[i].Error
			op.Err = e.Code + ": " + e.Message
			err = errors.Join(err, errors.New(op.Err))
		default:
			op.OK, op.Page = true, res.Pages[i].op()
			out[i] = op.Page
		}
		a.c.hist.Add(op)
	}
	return out, err
}

type watermarksJSON struct {
	Conversation    string      `json:"conversation"`
	MinSeq          number      `json:"minSeq"`
	MaxSeq          number      `json:"maxSeq"`
	ReadSeq         number      `json:"readSeq"`
	Unread          number      `json:"unread"`
	PeerReceiptSeq  number      `json:"peerReceiptSeq"`
	RepairNumber    number      `json:"repairNumber"`
	VisibleSegments []rangeJSON `json:"visible"`
	Error           *errorJSON  `json:"error"`
}

// watermarks asks for a user's numbers and notes them.
func (a *api) watermarks(ctx context.Context, phase, user string, convs ...string) error {
	t0 := a.c.hist.Now()
	var res struct {
		Watermarks []watermarksJSON `json:"watermarks"`
	}
	err := a.call(ctx, "GetWatermarks", map[string]any{"user": user, "conversations": convs}, &res)
	if err == nil && len(res.Watermarks) != len(convs) {
		err = fmt.Errorf("%d answers for %d conversations", len(res.Watermarks), len(convs))
	}
	t1 := a.c.hist.Now()
	for i, conv := range convs {
		op := history.Op{Kind: history.Watermarks, Phase: phase, T0: t0, T1: t1, User: user, Conversation: conv}
		switch {
		case err != nil:
			op.Err = err.Error()
		case res.Watermarks[i].Error != nil:
			e := res.Watermarks[i].Error
			op.Err = e.Code + ": " + e.Message
			err = errors.Join(err, errors.New(op.Err))
		default:
			w := res.Watermarks[i]
			op.OK, op.Marks = true, &history.Marks{
				Min: int64(w.MinSeq), Max: int64(w.MaxSeq), Read: int64(w.ReadSeq), Unread: int64(w.Unread),
				Receipt: int64(w.PeerReceiptSeq), Repair: int64(w.RepairNumber),
			}
			for _, r := range w.VisibleSegments {
				op.Marks.Visible = append(op.Marks.Visible, *r.op())
			}
		}
		a.c.hist.Add(op)
	}
	return err
}

// mark marks a conversation read up to seq, for own devices or for the peer too.
func (a *api) mark(ctx context.Context, method, user, conv string, seq int64) error {
	op := history.Op{Kind: history.Mark, T0: a.c.hist.Now(), User: user, Conversation: conv, Seq: seq}
	var res struct {
		ReadSeq    number `json:"readSeq"`
		ReceiptSeq number `json:"receiptSeq"`
		Unread     number `json:"unread"`
	}
	err := a.call(ctx, method, map[string]any{"user": user, "conversation": conv, "readSeq": seq}, &res)
	op.T1 = a.c.hist.Now()
	if err != nil {
		op.Err = err.Error()
	} else {
		op.OK, op.Marks = true, &history.Marks{Read: int64(res.ReadSeq), Unread: int64(res.Unread), Receipt: int64(res.ReceiptSeq)}
	}
	a.c.hist.Add(op)
	return err
}

// command gives a command until it is answered, always under the same id, and
// notes it as one operation.
func (a *api) command(ctx context.Context, kind history.Kind, user, conv, opID string) error {
	return a.perform(ctx, history.Op{Kind: kind, User: user, Conversation: conv, ID: opID})
}

// perform is command for any of them.
func (a *api) perform(ctx context.Context, op history.Op) error {
	op.T0 = a.c.hist.Now()
	method := map[history.Kind]string{
		history.Join: "Join", history.Leave: "Leave", history.Clear: "Clear", history.RaiseMin: "RaiseMinSeq", history.Revoke: "Revoke",
	}[op.Kind]
	req := map[string]any{"conversation": op.Conversation, "opId": op.ID}
	switch op.Kind {
	case history.RaiseMin:
		req["minSeq"] = op.Seq
	case history.Revoke:
		req["seq"] = op.Seq
	default:
		req["user"] = op.User
	}
	var res struct {
		MaxSeq number `json:"maxSeq"`
	}
	var err error
	for {
		err = a.call(ctx, method, req, &res)
		if err == nil || pause(ctx, 200*time.Millisecond) != nil {
			break
		}
	}
	op.T1 = a.c.hist.Now()
	if err != nil {
		op.Err = err.Error()
	} else {
		op.OK, op.Edge = true, int64(res.MaxSeq)
	}
	a.c.hist.Add(op)
	return err
}
