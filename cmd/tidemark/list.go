package main

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	tidemarkv1 "github.com/tidemark-im/tidemark/api/tidemark/v1"
	"github.com/tidemark-im/tidemark/api/tidemark/v1/tidemarkv1connect"
)

func newListCmd(a *app) *cobra.Command {
	req := tidemarkv1.SyncConversationsRequest{}
	cmd := &cobra.Command{
		Use:   "list",
		Short: "Show a user's conversations, or what changed in the list",
		Long: `List shows the conversations of a user as its devices show them, the latest
first: last message, unread messages, mentions, what the user set. With
--list-version it shows what changed since an earlier list, which ended with that
version.`,
		Example: `  tidemark list --user alice
  tidemark list --user alice --list-version AZ3a9w...
  tidemark list --user alice -o json | jq '.changed[].watermarks.conversation'`,
		GroupID: groupMessages,
	}
	cmd.Flags().StringVar(&req.User, "user", "", "`user` whose list it is")
	cmd.Flags().StringVar(&req.Version, "list-version", "", "`version` that an earlier list ended with (default: the whole list)")
	cmd.Flags().Int64Var(&req.PageSize, "page-size", 0, "most conversations of one answer, up to 1000 (default 500)")
	require(cmd, "user")
	a.calls(cmd, func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) error {
		return a.list(ctx, svc, &req)
	})
	return cmd
}

func (a *app) list(ctx context.Context, svc tidemarkv1connect.SyncServiceClient, req *tidemarkv1.SyncConversationsRequest) error {
	var rows [][]string
	since := req.GetVersion() != ""
	for {
		res, err := svc.SyncConversations(ctx, req)
		if err != nil {
			return err
		}
		a.emit(res, func() {
			for _, e := range res.GetChanged() {
				rows = append(rows, listRow(e, ""))
			}
			for _, e := range res.GetRemoved() {
				rows = append(rows, listRow(e, "left"))
			}
		})
		if req.PageToken = res.GetNextPageToken(); req.PageToken == "" {
			if a.output != "json" {
				a.printList(rows, res, since)
			}
			return nil
		}
	}
}

func (a *app) printList(rows [][]string, last *tidemarkv1.SyncConversationsResponse, since bool) {
	switch {
	case since && last.GetFullResync():
		fmt.Fprintln(a.out, "Nothing can be said since that version; this is the whole list.")
	case since && len(rows) == 0:
		fmt.Fprintln(a.out, "Nothing changed.")
	}
	if len(rows) > 0 {
		a.table([]string{"CONVERSATION", "LAST", "SEQ", "UNREAD", "MENTIONS", "SET", "MESSAGE"}, rows)
	}
	fmt.Fprintf(a.out, "%s, %d unread, %d of them not muted. Version: %s\n",
		count(int(last.GetTotalConversations()), "conversation"), last.GetTotalUnread(), last.GetTotalUnreadUnmuted(), last.GetVersion())
}

func listRow(e *tidemarkv1.ConversationEntry, state string) []string {
	w := e.GetWatermarks()
	mentions := fmt.Sprint(e.GetMentions())
	if e.GetMoreMentions() {
		mentions += "+"
	}
	set := attributesText(e.GetAttributes())
	if state != "" {
		set = strings.TrimSpace(state + " " + set)
	}
	return []string{w.GetConversation(), clock(w.GetLastTimeMs()), fmt.Sprint(w.GetMaxSeq()), fmt.Sprint(w.GetUnread()), mentions, set, lastText(e)}
}

func attributesText(attrs map[string]string) string {
	var parts []string
	for _, k := range slices.Sorted(maps.Keys(attrs)) {
		parts = append(parts, k+"="+attrs[k])
	}
	return strings.Join(parts, " ")
}

func lastText(e *tidemarkv1.ConversationEntry) string {
	m := e.GetLast()
	if m == nil {
		return ""
	}
	text := m.GetSender() + ": " + content(m)
	if e.GetLastCut() {
		text += "..."
	}
	return text
}

func newReadersCmd(a *app) *cobra.Command {
	req := tidemarkv1.WhoHasReadRequest{PageSize: 1000}
	cmd := &cobra.Command{
		Use:   "readers",
		Short: "Show who has read a message",
		Long: `Readers shows the members who see a message and have read it. In a single
conversation it is what the peer tells.`,
		Example: "  tidemark readers --user alice --conversation group:g1 --seq 12",
		GroupID: groupMessages,
	}
	cmd.Flags().StringVar(&req.User, "user", "", "`user` who asks, and sees the message")
	cmd.Flags().StringVar(&req.Conversation, "conversation", "", "`conversation` it is about")
	cmd.Flags().Int64Var(&req.Seq, "seq", 0, "`seq` of the message")
	require(cmd, "user", "conversation", "seq")
	a.calls(cmd, func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) error {
		return a.readers(ctx, svc, &req)
	})
	return cmd
}

func (a *app) readers(ctx context.Context, svc tidemarkv1connect.SyncServiceClient, req *tidemarkv1.WhoHasReadRequest) error {
	var rows [][]string
	for first := true; first || req.PageToken != ""; first = false {
		res, err := svc.WhoHasRead(ctx, req)
		if err != nil {
			return err
		}
		a.emit(res, func() {
			if first {
				most := ""
				if res.GetCountAtMost() {
					most = "at most "
				}
				fmt.Fprintf(a.out, "%s%s\n", most, count(int(res.GetCount()), "reader"))
			}
			for _, r := range res.GetReaders() {
				rows = append(rows, []string{r.GetUser(), fmt.Sprint(r.GetReadSeq())})
			}
		})
		req.PageToken = res.GetNextPageToken()
	}
	if len(rows) > 0 {
		a.table([]string{"USER", "READ"}, rows)
	}
	return nil
}

func newAttributesCmd(a *app) *cobra.Command {
	f := &commandFlags{}
	var pairs []string
	cmd := &cobra.Command{
		Use:   "attributes",
		Short: "Set what a user keeps about a conversation: pinned, muted, ...",
		Long: `Attributes sets what a user keeps about a conversation on all its devices. An
empty value removes an attribute; those that are not named stay as they are.`,
		Example: `  tidemark attributes --conversation group:g1 --user alice --attribute muted=1
  tidemark attributes --conversation group:g1 --user alice --attribute muted=`,
	}
	cmd.Flags().StringVar(&f.user, "user", "", "`user` whose attributes they are")
	cmd.Flags().StringArrayVar(&pairs, "attribute", nil, "`name=value`; repeatable")
	require(cmd, "user", "attribute")
	return a.orders(cmd, f, func() string { return f.user + " set " + strings.Join(pairs, " ") },
		func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (*tidemarkv1.CommandResponse, error) {
			attrs := make(map[string]string, len(pairs))
			for _, p := range pairs {
				name, value, ok := strings.Cut(p, "=")
				if !ok {
					return nil, usagef("--attribute takes name=value, %q has no '='", p)
				}
				attrs[name] = value
			}
			return svc.SetConversationAttributes(ctx, &tidemarkv1.SetConversationAttributesRequest{
				User: f.user, Conversation: f.conversation, Attributes: attrs, OpId: f.op,
			})
		})
}

func newPolicyCmd(a *app) *cobra.Command {
	f := &commandFlags{}
	var policy string
	choices := map[string]tidemarkv1.UnreadPolicy{
		"default":         tidemarkv1.UnreadPolicy_UNREAD_POLICY_UNSPECIFIED,
		"advance_on_send": tidemarkv1.UnreadPolicy_UNREAD_POLICY_ADVANCE_ON_SEND,
		"keep_on_send":    tidemarkv1.UnreadPolicy_UNREAD_POLICY_KEEP_ON_SEND,
	}
	cmd := &cobra.Command{
		Use:   "policy",
		Short: "Say how a conversation counts own messages as unread",
		Long: `Policy says for one conversation whether sending marks everything before as read
(advance_on_send) or leaves it unread (keep_on_send), from the next message on.`,
		Example: "  tidemark policy --conversation group:g1 --policy keep_on_send",
	}
	cmd.Flags().StringVar(&policy, "policy", "", "`policy`: default, advance_on_send or keep_on_send")
	require(cmd, "policy")
	return a.orders(cmd, f, func() string { return "its unread policy is " + policy },
		func(ctx context.Context, svc tidemarkv1connect.SyncServiceClient) (*tidemarkv1.CommandResponse, error) {
			if err := oneOf("policy", policy, "default", "advance_on_send", "keep_on_send"); err != nil {
				return nil, err
			}
			return svc.SetUnreadPolicy(ctx, &tidemarkv1.SetUnreadPolicyRequest{Conversation: f.conversation, Policy: choices[policy], OpId: f.op})
		})
}
