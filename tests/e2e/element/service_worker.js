// Pictures are asked for by elements of the page, which cannot say who they are. As in Element Web, its service
// worker asks for them in their place, at the addresses that want to know.

const MEDIA = /\/_matrix\/media\/(?:v3|r0)\/(?=download|thumbnail)/;

self.addEventListener("install", () => self.skipWaiting());
self.addEventListener("activate", (event) => event.waitUntil(self.clients.claim()));

/** What the page says of its session: `token`, `server`. */
async function session(clientId) {
    const client = await self.clients.get(clientId);
    if (!client) return {};
    const { port1, port2 } = new MessageChannel();
    const answer = new Promise((resolve) => { port1.onmessage = ({ data }) => resolve(data); });
    client.postMessage("who?", [port2]);
    return answer;
}

async function media(event) {
    const { token, server } = await session(event.clientId);
    const { url } = event.request;
    if (!token || new URL(url).origin !== new URL(server).origin) return fetch(event.request);
    return fetch(url.replace(MEDIA, "/_matrix/client/v1/media/"), { headers: { authorization: `Bearer ${token}` } });
}

self.addEventListener("fetch", (event) => {
    if (event.request.method === "GET" && MEDIA.test(event.request.url)) event.respondWith(media(event));
});
