// A server and a gateway in memory, for tests of client.js alone. Evaluated in
// the console's page; what a test did is written to world.log.
globalThis.newWorld = async (options = {}) => {
  const lib = await import('/console/client.js');
  const conversation = 'group:x';
  const world = {
    lib, log: [], sockets: [], calls: [], max: 0, min: 1, read: 0, repair: 0, repairFrom: 0, visible: null, held: null, faults: [], bodies: {},
    revoked: [], moreRevoked: false,
    row: (seq) => (world.revoked.includes(String(seq))
      ? { conversation, seq: String(seq), sender: 'zoe', revoked: true, revokedBy: 'zoe' }
      : { conversation, seq: String(seq), sender: 'zoe', clientMessageId: 'm' + seq, text: world.bodies[seq] ?? 't' + seq }),
    push: (event) => world.sockets.at(-1).say({ push: { channel: 'user:ann', pub: { data: { conversation, maxSeq: String(world.max), repairNumber: String(world.repair), ...event } } } }),
    // message n is there, and is pushed
    message(n) { world.max = Math.max(world.max, n); world.push({ message: world.row(n) }); },
    seqs: () => [...world.room.messages.keys()].sort((a, b) => a - b),
    texts: () => world.seqs().map((s) => world.room.messages.get(s).text),
    until: async (what, cond) => {
      for (const end = Date.now() + 30_000; !cond();) {
        if (Date.now() > end) throw new Error('not in time: ' + what);
        await new Promise((go) => setTimeout(go, 5));
      }
    },
    // quiet waits until the device has nothing to do.
    async quiet() {
      for (let before = -1; before !== world.calls.length;) {
        before = world.calls.length;
        await new Promise((go) => setTimeout(go, 800));
        await world.device.tail;
      }
    },
  };
  const answers = {
    GetWatermarks: ({ conversations }) => ({ watermarks: conversations.map((c) => ({
      conversation: c, minSeq: String(world.min), maxSeq: String(world.max), readSeq: String(world.read), unread: '0', repairNumber: String(world.repair), repairFrom: String(world.repairFrom),
      visible: world.visible ?? (world.max >= world.min ? [{ begin: String(world.min), end: String(world.max) }] : []), member: true, membership: 1,
    })) }),
    SyncConversations: ({ version }) => ({
      changed: [{ watermarks: { conversation }, ...(version === 'v' + world.revoked.length ? {} : { revoked: world.revoked, moreRevoked: world.moreRevoked }) }],
      version: 'v' + world.revoked.length,
    }),
    Pull: ({ ranges: [r] }) => {
      const end = Math.min(r.end, r.begin + r.num - 1);
      const messages = [];
      for (let s = r.begin; s <= end; s++) messages.push(world.row(s));
      return { pages: [{ conversation, messages, covered: { begin: String(r.begin), end: String(end) }, ...(end < r.end ? { rest: { begin: String(end + 1), end: String(r.end) } } : { isEnd: true }) }] };
    },
    Send: ({ message }) => {
      if (!world.sent) { world.sent = message; world.max++; }
      return { clientMessageId: message.clientMessageId, seq: String(world.max) };
    },
  };
  const fetch = async (url, { body, headers, signal }) => {
    const method = url.split('/').at(-1);
    const request = JSON.parse(body);
    world.calls.push({ method, request, authorization: headers.authorization });
    world.log.push(method === 'Pull' ? `Pull ${request.ranges[0].begin}..${request.ranges[0].end}` : method);
    if (world.held) await world.held;
    signal?.throwIfAborted();
    const fault = world.faults.shift();
    if (fault === 'network') throw new TypeError('Failed to fetch');
    if (fault) return new Response(JSON.stringify(fault), { status: 503, headers: { 'retry-after': '0' } });
    return new Response(JSON.stringify(answers[method](request)));
  };
  class Socket {
    constructor(url) {
      this.url = url;
      this.sent = [];
      world.sockets.push(this);
      world.log.push('connect');
      setTimeout(() => this.onopen?.());
    }
    send(text) {
      this.sent.push(text);
      const frame = JSON.parse(text);
      if (!frame.connect) return;
      if (options.refuse) return void this.close(...options.refuse);
      const error = world.connectErrors?.shift();
      setTimeout(() => this.say({ id: frame.id, ...(error ? { error } : { connect: { client: 'c', ping: 25, pong: true } }) }));
    }
    say(...frames) { this.onmessage?.({ data: frames.map((f) => JSON.stringify(f)).join('\n') }); }
    close(code = 1000, reason = '') { setTimeout(() => this.onclose?.({ code, reason })); }
  }
  world.device = new lib.Device({
    user: 'ann', device: 'd1', pageSize: 3, newest: options.newest ?? 200, random: () => 0,
    api: new lib.Api({ fetch, token: () => 'T' }), live: { url: 'ws://x', WebSocket: Socket, token: () => (world.tokens ? world.tokens.shift() : 'T') },
    on: { state: (s, why) => world.log.push('= ' + s + (why ? ': ' + why : '')), note: (words) => world.log.push('! ' + words) },
  });
  world.room = world.device.open(conversation);
  world.conversation = conversation;
  world.max = options.max ?? 0;
  world.device.comeBack();
  if (!options.refuse) {
    await world.until('live', () => world.device.state === 'live');
    world.log.length = 0;
  }
  return world;
};
