//go:build browser

package browser_test

import (
	"os"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
)

// The rules of the client, against a server and a gateway in memory: each script
// gives what was seen, in order.
func TestTheClient(t *testing.T) {
	world, err := os.ReadFile("testdata/world.js")
	if err != nil {
		t.Fatal(err)
	}
	d := sit(t, shared.stack.ConsoleURL(), "conversation=group:none&users=zoe")
	d.run(chromedp.Evaluate[chromedp.Void](string(world) + ";0"))
	for name, tc := range map[string]struct {
		script string
		want   []string
	}{
		"what is pushed twice or in another order comes once, in order": {`
			const w = await newWorld({max: 2});
			w.message(3); w.message(3); w.message(5); w.message(4); w.message(5); w.message(2);
			await w.quiet();
			return [w.texts().join(' '), w.log.filter(l => l.startsWith('Pull')).join(' ')]`,
			[]string{"t1 t2 t3 t4 t5", "Pull 4..5"}},
		"a gap is pulled": {`
			const w = await newWorld({max: 2});
			w.max = 7; w.message(8);
			await w.quiet();
			return [w.texts().join(' '), w.log.filter(l => l.startsWith('Pull')).join(' ')]`,
			[]string{"t1 t2 t3 t4 t5 t6 t7 t8", "Pull 3..8 Pull 6..8"}},
		"what is pushed during a pull waits for it": {`
			const w = await newWorld({max: 2});
			let go; w.held = new Promise(r => { go = r });
			w.max = 5; w.message(6);
			await w.until('asked', () => w.log.includes('GetWatermarks'));
			w.message(7); w.message(8);
			w.held = null; go();
			await w.quiet();
			return [w.texts().join(' '), w.log.filter(l => l.startsWith('Pull')).join(' ')]`,
			[]string{"t1 t2 t3 t4 t5 t6 t7 t8", "Pull 3..8 Pull 6..8"}},
		"what goes on is not pulled": {`
			const w = await newWorld();
			for (let i = 1; i <= 9; i++) w.message(i);
			await w.quiet();
			return [w.seqs().join(' '), w.log.filter(l => l.startsWith('Pull')).join(' ')]`,
			[]string{"1 2 3 4 5 6 7 8 9", ""}},
		"what the server has and nobody pushes is pulled after a while": {`
			const w = await newWorld({max: 2});
			w.max = 4; w.push({read: {user: 'ann', readSeq: '2'}});
			await w.until('pulled', () => w.room.messages.size === 4);
			return [w.texts().join(' ')]`,
			[]string{"t1 t2 t3 t4"}},
		"more events than wait cost a comparison": {`
			const w = await newWorld({max: 1, newest: 1000});
			const other = w.device.open('group:y');
			await w.quiet();
			let go; w.held = new Promise(r => { go = r });
			w.max = 2; w.message(3);
			for (let i = 4; i <= 600; i++) w.message(i);
			w.push({conversation: 'group:y', message: {...w.row(600), conversation: 'group:y'}});
			w.held = null; go();
			await w.until('all', () => w.room.messages.has(600) && other.messages.has(600));
			return [String(w.room.messages.size), String(w.lib.spans.count(w.room.known)), w.seqs().every((s, i, a) => i === 0 || s === a[i - 1] + 1) ? 'dense' : 'holes']`,
			[]string{"600", "600", "dense"}},
		"a repair is pulled again": {`
			const w = await newWorld({max: 5});
			w.repair = 9; w.repairFrom = 3; w.bodies = {3: 'new3', 4: 'new4'};
			w.push({repaired: {number: '9', from: '3'}});
			await w.quiet();
			return [w.texts().join(' '), w.log.filter(l => l.startsWith('Pull')).join(' ')]`,
			[]string{"t1 t2 new3 new4 t5", "Pull 3..5"}},
		"what may not be seen any more is dropped, and pulled when it may again": {`
			const w = await newWorld({max: 5});
			w.visible = [{begin: '1', end: '2'}, {begin: '5', end: '5'}];
			w.push({window: {member: {user: 'ann'}}});
			await w.quiet();
			const out = [w.texts().join(' ')];
			w.visible = null;
			w.push({window: {member: {user: 'ann'}}});
			await w.quiet();
			return [...out, w.texts().join(' '), w.log.filter(l => l.startsWith('Pull')).join(' ')]`,
			[]string{"t1 t2 t5", "t1 t2 t3 t4 t5", "Pull 3..4"}},
		"a hint that there is more than what is pushed is followed, typing asks for nothing": {`
			const w = await newWorld({max: 2});
			w.push({transient: {user: 'zoe', kind: 'typing'}}); w.push({});
			await w.quiet();
			const out = [String(w.calls.filter(c => c.method === 'Pull').length)];
			w.max = 4; w.push({});
			await w.quiet();
			return [...out, w.texts().join(' ')]`,
			[]string{"1", "t1 t2 t3 t4"}},
		"a revoke leaves a tombstone": {`
			const w = await newWorld({max: 2});
			w.push({revoked: {seq: '2', by: 'zoe', timeMs: '1'}});
			await w.quiet();
			const m = w.room.messages.get(2);
			return [m.text, String(m.revoked), m.revokedBy]`,
			[]string{"", "true", "zoe"}},
		"of a long conversation the newest alone": {`
			const w = await newWorld({max: 1000, newest: 6});
			await w.device.older(w.conversation);
			return [w.seqs().join(' '), String(w.room.hasOlder())]`,
			[]string{"992 993 994 995 996 997 998 999 1000", "true"}},
		"a break without traffic pulls nothing": {`
			const w = await newWorld({max: 4});
			w.sockets[0].close(3000, 'bye');
			await w.until('connected again', () => w.sockets.length === 2 && w.device.state === 'live');
			return w.log`,
			[]string{"= waiting: bye", "= connecting", "connect", "= catching up", "GetWatermarks", "SyncConversations", "= live"}},
		"what was revoked during a break is a tombstone": {`
			const w = await newWorld({max: 4});
			w.revoked = ['2', '9']; w.sockets[0].close(1006);
			await w.until('connected again', () => w.sockets.length === 2 && w.device.state === 'live');
			return [w.seqs().map(s => s + (w.room.messages.get(s).revoked ? 'x' : '')).join(' '), ...w.log.filter(l => l.startsWith('Pull'))]`,
			[]string{"1 2x 3 4", "Pull 2..2"}},
		"where more was revoked than is told everything is pulled": {`
			const w = await newWorld({max: 4});
			w.revoked = ['2', '3']; w.moreRevoked = true; w.sockets[0].close(1006);
			await w.until('connected again', () => w.sockets.length === 2 && w.device.state === 'live');
			return [w.seqs().map(s => s + (w.room.messages.get(s).revoked ? 'x' : '')).join(' '), ...w.log.filter(l => l.startsWith('Pull'))]`,
			[]string{"1 2x 3x 4", "Pull 1..4", "Pull 4..4"}},
		"after a break what was missed is pulled": {`
			const w = await newWorld({max: 4});
			w.max = 6; w.sockets[0].close(1006);
			await w.until('connected again', () => w.sockets.length === 2 && w.device.state === 'live');
			return [w.texts().join(' '), ...w.log.filter(l => l.startsWith('Pull') || l.includes('broke'))]`,
			[]string{"t1 t2 t3 t4 t5 t6", "= waiting: the connection broke", "Pull 5..6"}},
		"who is refused for good does not come again": {`
			const w = await newWorld({refuse: [3500, 'invalid token']});
			await w.until('refused', () => w.device.state === 'refused');
			await new Promise(r => setTimeout(r, 300));
			return w.log`,
			[]string{"= connecting", "connect", "= refused: invalid token"}},
		"an expired token is asked for again, once": {`
			const w = await newWorld({max: 1});
			w.tokens = ['old', 'new']; w.connectErrors = [{code: 109, message: 'token expired'}];
			w.sockets[0].close(3005, 'connection expired');
			await w.until('connected again', () => w.device.state === 'live' && w.sockets.length === 3);
			return w.sockets.slice(1).map(s => JSON.parse(s.sent[0]).connect.token)`,
			[]string{"old", "new"}},
		"a ping is answered": {`
			const w = await newWorld();
			w.sockets[0].say({});
			return [w.sockets[0].sent.at(-1)]`,
			[]string{"{}"}},
		"a send that fails is repeated under its id": {`
			const w = await newWorld();
			w.faults = ['network', {code: 'unavailable', message: 'away', details: []}];
			w.device.send(w.conversation, 'hi');
			await w.until('sent', () => w.device.outbox.length === 0 && w.room.messages.size === 1);
			const sends = w.calls.filter(c => c.method === 'Send').map(c => c.request.message.clientMessageId);
			return [String(sends.length), String(new Set(sends).size), w.room.messages.get(1).text]`,
			[]string{"3", "1", "hi"}},
		"a send that is refused says why and holds up nothing": {`
			const w = await newWorld();
			w.faults = [{code: 'permission_denied', message: 'no', details: [{type: 'google.rpc.ErrorInfo', debug: {reason: 'not_member'}}]}];
			w.device.send(w.conversation, 'bad'); w.device.send(w.conversation, 'good');
			await w.until('the second is sent', () => w.room.messages.size === 1);
			return [...w.device.outbox.map(o => o.text + ' ' + o.state), w.sent.text, ...w.log.filter(l => l.startsWith('!'))]`,
			[]string{"bad failed", "good", "! Not sent: no"}},
		"what is sent offline goes out when the device comes back": {`
			const w = await newWorld();
			w.device.goOffline();
			w.device.send(w.conversation, 'later');
			w.message(1);
			await new Promise(r => setTimeout(r, 200));
			const out = [w.device.outbox[0].state, String(w.calls.filter(c => c.method === 'Send').length), w.seqs().join(' ')];
			w.device.comeBack();
			await w.until('sent', () => w.device.outbox.length === 0 && w.room.messages.size === 2);
			return [...out, w.seqs().join(' ')]`,
			[]string{"waiting", "0", "", "1 2"}},
		"calls carry the token": {`
			const w = await newWorld();
			return [w.calls[0].authorization]`,
			[]string{"Bearer T"}},
		"sets of seqs are those of a plain model": {`
			const {spans} = await import('/console/client.js');
			let seed = 7; const r = (n) => (seed = (seed * 1103515245 + 12345) % 2147483648) % n;
			const some = () => spans.add([], Array.from({length: r(5)}, () => { const f = 1 + r(30); return [f, f + r(6)] }));
			const flat = (a) => { const o = new Set(); for (const [f, t] of a) for (let s = f; s <= t; s++) o.add(s); return o };
			const text = (set) => [...set].sort((a, b) => a - b).join(' ');
			for (let i = 0; i < 3000; i++) {
				const [a, b] = [some(), some()], [x, y] = [flat(a), flat(b)];
				const ok = text(flat(spans.add(a, b))) === text(x.union(y)) && text(flat(spans.both(a, b))) === text(x.intersection(y))
					&& text(flat(spans.without(a, b))) === text(x.difference(y)) && spans.count(a) === x.size && [...Array(40).keys()].every(s => spans.has(a, s) === x.has(s));
				if (!ok) return [JSON.stringify([a, b])];
			}
			return []`,
			[]string{}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			got := evalFor[[]string](t, d, `(async () => { %s })()`, tc.script)
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("-want +got:\n%s", diff)
			}
		})
	}
}
