// The gateway's WebSocket: centrifuge's protocol in JSON, as far as a device
// needs it. https://centrifugal.dev/docs/transports/client_protocol

import { backOff, sleep } from './wait.js';

/**
 * Keeps a connection until signal aborts. connected is called whenever it stands
 * (again), event with each pushed event. getToken, if given, gives the token.
 * Throws when the gateway refuses the connection for good.
 */
export async function stream({ url, user, device, getToken, signal, connected, event }) {
  if (typeof WebSocket === 'undefined') throw new Error('there is no WebSocket: take Node 22, or start Node 20 with --experimental-websocket');
  const pause = backOff();
  while (!signal.aborted) {
    const began = Date.now();
    let end;
    try {
      const token = getToken ? await getToken() : undefined;
      end = await once({ url, data: { user, device }, token, getToken, signal, connected, event });
    } catch (error) {
      end = { code: 0, reason: error.message };
    }
    if ((end.code >= 3500 && end.code < 4000) || (end.code >= 4500 && end.code < 5000)) throw new Error(`the gateway refuses: ${end.reason} (${end.code})`);
    if (Date.now() - began > 10_000) pause.reset();
    await sleep(pause.next(), signal);
  }
}

// One connection; resolves with the code and reason of its end.
function once({ url, data, token, getToken, signal, connected, event }) {
  return new Promise((resolve) => {
    const socket = new WebSocket(url);
    let id = 1;
    let silence, refresh;
    const finish = (end) => {
      clearTimeout(silence);
      clearTimeout(refresh);
      signal.removeEventListener('abort', abort);
      socket.onopen = socket.onmessage = socket.onclose = socket.onerror = null;
      socket.close();
      resolve(end);
    };
    const abort = () => finish({ code: 0, reason: 'stopped' });
    signal.addEventListener('abort', abort);
    const send = (command) => socket.readyState === WebSocket.OPEN && socket.send(JSON.stringify(command));
    let ping = 25;
    let pong = false;
    // The gateway pings; a connection on which nothing comes is gone.
    const heard = () => {
      clearTimeout(silence);
      silence = setTimeout(() => finish({ code: 0, reason: 'silence' }), (ping + 10) * 1000);
    };
    const renewIn = (seconds) => {
      clearTimeout(refresh);
      if (!seconds || !getToken) return;
      refresh = setTimeout(() => {
        getToken().then((token) => send({ id: ++id, refresh: { token } }), () => {}); // else it ends, and comes again
      }, Math.max(seconds - 10, 1) * 1000);
    };
    socket.onopen = () => {
      heard();
      send({ id, connect: { data, token, name: 'tidemark-js' } });
    };
    socket.onclose = (e) => finish({ code: e.code, reason: e.reason });
    socket.onerror = () => finish({ code: 0, reason: 'the connection failed' });
    socket.onmessage = ({ data }) => {
      heard();
      for (const line of data.split('\n')) {
        if (!line) continue;
        const reply = JSON.parse(line);
        if (Object.keys(reply).length === 0) {
          if (pong) socket.send('{}');
        } else if (reply.error) {
          finish({ code: 0, reason: reply.error.message }); // a token that has expired, among others
        } else if (reply.connect) {
          ping = reply.connect.ping || ping;
          pong = reply.connect.pong || false;
          renewIn(reply.connect.ttl);
          connected();
        } else if (reply.refresh) {
          renewIn(reply.refresh.ttl);
        } else if (reply.push?.pub) {
          event(reply.push.pub.data);
        } else if (reply.push?.disconnect) {
          finish(reply.push.disconnect);
        }
      }
    };
    if (signal.aborted) abort();
  });
}
