package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/encoding/protojson"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
	"github.com/tidemark-im/tidemark/watermark"
)

type pullFlags struct {
	user          string
	conversations []string
	begin, end    int64
	num           int64
	order, keep   string
	all           bool
}

func newPullCmd(a *app) *cobra.Command {
	f := pullFlags{}
	cmd := &cobra.Command{
		Use:   "pull",
		Short: "Read messages of conversations as a user",
		Long: `Pull reads the seqs begin..end of one or more conversations, as far as the user
can see them. Of a range that does not fit in one answer the part nearest its end
is read; --all reads the rest too.`,
		Example: `  tidemark pull --user alice --conversation group:g1
  tidemark pull --user alice --conversation group:g1 --begin 100 --end 200 --all
  tidemark pull --user alice --conversation group:g1 --num 20 --order desc
  tidemark pull --user alice --conversation group:g1 -o json | jq -r '.messages[].text'`,
		GroupID: groupMessages,
	}
	flags := cmd.Flags()
	flags.StringVar(&f.user, "user", "", "`user` who reads")
	flags.StringArrayVar(&f.conversations, "conversation", nil, "`conversation` to read; repeatable")
	flags.Int64Var(&f.begin, "begin", 1, "first `seq`")
	flags.Int64Var(&f.end, "end", int64(watermark.MaxSeq), "last `seq`")
	flags.Int64Var(&f.num, "num", 0, "most messages of one answer, up to 1000 (default 100)")
	flags.StringVar(&f.order, "order", "asc", "`order` of seqs: asc or desc")
	flags.StringVar(&f.keep, "keep", "", "`part` of a range that is read first: end or begin (default end; with --all the one that the order begins with)")
	flags.BoolVar(&f.all, "all", false, "go on until the whole range is read")
	require(cmd, "user", "conversation")
	a.calls(cmd, func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) error { return a.pull(ctx, svc, f) })
	return cmd
}

func (a *app) pull(ctx context.Context, svc tidemarkv1connect.SyncServiceClient, f pullFlags) error {
	ranges, err := f.ranges()
	if err != nil {
		return err
	}
	var errs []error
	for len(ranges) > 0 {
		res, err := svc.Pull(ctx, &tidemarkv1.PullRequest{User: f.user, Ranges: ranges})
		if err != nil {
			return errors.Join(append(errs, err)...)
		}
		if len(res.GetPages()) != len(ranges) {
			return fmt.Errorf("the server gave %d answers to %d questions", len(res.GetPages()), len(ranges))
		}
		var next []*tidemarkv1.PullRange
		for i, page := range res.GetPages() {
			if e := page.GetError(); e != nil {
				errs = append(errs, entryError(page.GetConversation(), e))
				continue
			}
			a.emit(page, func() { a.printPage(page, f.all) })
			rest := page.GetRest()
			if rest == nil || !f.all {
				continue
			}
			if len(page.GetMessages()) == 0 && rest.GetEnd()-rest.GetBegin() >= ranges[i].GetEnd()-ranges[i].GetBegin() {
				errs = append(errs, fmt.Errorf("%s: the server cannot read seqs %d to %d at the moment", page.GetConversation(), rest.GetBegin(), rest.GetEnd()))
				continue
			}
			ranges[i].Begin, ranges[i].End = rest.GetBegin(), rest.GetEnd()
			next = append(next, ranges[i])
		}
		ranges = next
	}
	return errors.Join(errs...)
}

func (f pullFlags) ranges() ([]*tidemarkv1.PullRange, error) {
	order := map[string]tidemarkv1.Order{"asc": tidemarkv1.Order_ORDER_ASC, "desc": tidemarkv1.Order_ORDER_DESC}
	keep := map[string]tidemarkv1.Keep{"begin": tidemarkv1.Keep_KEEP_NEAR_BEGIN, "end": tidemarkv1.Keep_KEEP_NEAR_END}
	part := f.keep
	if part == "" {
		part = "end"
		if f.all && f.order == "asc" {
			part = "begin"
		}
	}
	var num error
	if f.num < 0 || f.num > watermark.MaxPage {
		num = usagef("--num must be within 1..%d, is %d", watermark.MaxPage, f.num)
	}
	if err := errors.Join(oneOf("order", f.order, "asc", "desc"), oneOf("keep", part, "end", "begin"), num); err != nil {
		return nil, err
	}
	var out []*tidemarkv1.PullRange
	for _, c := range f.conversations {
		out = append(out, &tidemarkv1.PullRange{Conversation: c, Begin: f.begin, End: f.end, Num: f.num, Order: order[f.order], Keep: keep[part]})
	}
	return out, nil
}

func (a *app) printPage(p *tidemarkv1.PullPage, all bool) {
	if len(p.GetMessages()) > 0 {
		rows := make([][]string, len(p.GetMessages()))
		for i, m := range p.GetMessages() {
			rows[i] = []string{strconv.FormatInt(m.GetSeq(), 10), clock(m.GetSendTimeMs()), m.GetSender(), m.GetKind(), content(m)}
		}
		a.table([]string{"SEQ", "TIME", "SENDER", "KIND", "CONTENT"}, rows)
	}
	fmt.Fprintf(a.out, "%s: %s", p.GetConversation(), count(len(p.GetMessages()), "message"))
	if p.GetMinSeq() > p.GetMaxSeq() {
		fmt.Fprint(a.out, ", nothing can be seen")
	} else {
		fmt.Fprintf(a.out, ", can see %d to %d", p.GetMinSeq(), p.GetMaxSeq())
	}
	switch rest := p.GetRest(); {
	case rest != nil && !all:
		fmt.Fprintf(a.out, ", %d to %d not read (--all reads them)", rest.GetBegin(), rest.GetEnd())
	case rest == nil && p.GetIsEnd():
		fmt.Fprint(a.out, ", that is all")
	}
	fmt.Fprintln(a.out)
}

// content gives a message's body for people.
func content(m *tidemarkv1.Message) string {
	if m.GetRevoked() {
		by := ""
		if m.GetRevokedBy() != "" {
			by = " by " + m.GetRevokedBy()
		}
		return "(revoked" + by + ")"
	}
	switch b := m.GetBody().(type) {
	case *tidemarkv1.Message_Text:
		return b.Text
	case *tidemarkv1.Message_Json:
		if j, err := marshalLine(b.Json); err == nil {
			return string(j)
		}
	case *tidemarkv1.Message_Data:
		if utf8.Valid(b.Data) && len(b.Data) <= 200 {
			return strconv.Quote(string(b.Data))
		}
		return fmt.Sprintf("(%d bytes)", len(b.Data))
	}
	return ""
}

func entryError(conv string, e *tidemarkv1.EntryError) error {
	if e.GetRetryAfterMs() > 0 {
		return fmt.Errorf("%s: %s: %s (try again in %s)", conv, e.GetCode(), e.GetMessage(), time.Duration(e.GetRetryAfterMs())*time.Millisecond)
	}
	return fmt.Errorf("%s: %s: %s", conv, e.GetCode(), e.GetMessage())
}

func newWatermarksCmd(a *app) *cobra.Command {
	var user string
	var conversations []string
	cmd := &cobra.Command{
		Use:   "watermarks",
		Short: "Show a user's numbers: what can be seen, is read, is unread",
		Long: `Watermarks shows the numbers of a user in the given conversations, or in all of
them with the latest message first.`,
		Example: `  tidemark watermarks --user alice
  tidemark watermarks --user alice --conversation group:g1 --conversation single:alice:bob`,
		GroupID: groupMessages,
	}
	cmd.Flags().StringVar(&user, "user", "", "`user` whose numbers are shown")
	cmd.Flags().StringArrayVar(&conversations, "conversation", nil, "`conversation`; repeatable (default all)")
	require(cmd, "user")
	a.calls(cmd, func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) error {
		var all []*tidemarkv1.Watermarks
		req := &tidemarkv1.GetWatermarksRequest{User: user, Conversations: conversations}
		for {
			res, err := svc.GetWatermarks(ctx, req)
			if err != nil {
				return err
			}
			all = append(all, res.GetWatermarks()...)
			if req.PageToken = res.GetNextPageToken(); req.PageToken == "" {
				if len(all) == 0 && a.output != "json" {
					fmt.Fprintln(a.out, "no conversations")
				}
				return a.printWatermarks(all)
			}
		}
	})
	return cmd
}

func (a *app) printWatermarks(all []*tidemarkv1.Watermarks) error {
	var errs []error
	var rows [][]string
	n := func(v int64) string { return strconv.FormatInt(v, 10) }
	for _, w := range all {
		if w.GetError() != nil {
			errs = append(errs, entryError(w.GetConversation(), w.GetError()))
			continue
		}
		peer, member := "-", "no"
		if strings.HasPrefix(w.GetConversation(), "single:") {
			peer = n(w.GetPeerReceiptSeq())
		}
		if w.GetMember() {
			member = "yes"
		}
		a.emit(w, func() {
			rows = append(rows, []string{w.GetConversation(), n(w.GetMinSeq()), n(w.GetMaxSeq()), n(w.GetReadSeq()), n(w.GetUnread()), peer, member, clock(w.GetLastTimeMs())})
		})
	}
	if len(rows) > 0 {
		a.table([]string{"CONVERSATION", "MIN", "MAX", "READ", "UNREAD", "PEER READ", "MEMBER", "LAST MESSAGE"}, rows)
	}
	return errors.Join(errs...)
}

func newReadCmd(a *app) *cobra.Command {
	var user, conv, device string
	var seq int64
	var tellPeer bool
	cmd := &cobra.Command{
		Use:   "read",
		Short: "Mark a conversation read up to a seq",
		Long: `Read raises the user's read watermark; it never goes back. By default only the
user's own devices are told. With --tell-peer the other user of a single
conversation sees that the messages were read.`,
		Example: `  tidemark read --user bob --conversation group:g1 --seq 12
  tidemark read --user bob --conversation single:alice:bob --seq 12 --tell-peer`,
		GroupID: groupMessages,
	}
	flags := cmd.Flags()
	flags.StringVar(&user, "user", "", "`user` who has read")
	flags.StringVar(&conv, "conversation", "", "`conversation` that was read")
	flags.Int64Var(&seq, "seq", 0, "highest `seq` that was read")
	flags.StringVar(&device, "device", "", "`device` on which it was read")
	flags.BoolVar(&tellPeer, "tell-peer", false, "tell the other user of a single conversation")
	require(cmd, "user", "conversation", "seq")
	a.calls(cmd, func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (err error) {
		var res *tidemarkv1.ReadResponse
		if tellPeer {
			res, err = svc.MarkConversationRead(ctx, &tidemarkv1.MarkConversationReadRequest{User: user, Conversation: conv, ReadSeq: seq, Device: device})
		} else {
			res, err = svc.SetReadSeq(ctx, &tidemarkv1.SetReadSeqRequest{User: user, Conversation: conv, ReadSeq: seq, Device: device})
		}
		if err != nil {
			return err
		}
		a.emit(res, func() {
			fmt.Fprintf(a.out, "%s: %s has read up to %d, %d unread\n", conv, user, res.GetReadSeq(), res.GetUnread())
		})
		return nil
	})
	return cmd
}

// pushText gives an event that is no message for people.
func pushText(e *tidemarkv1.PushEvent) string {
	b, err := marshalCompact(e)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// marshalCompact leaves empty fields out.
func marshalCompact(e *tidemarkv1.PushEvent) ([]byte, error) {
	b, err := protojson.Marshal(e)
	if err != nil {
		return nil, err
	}
	return compact(b)
}
