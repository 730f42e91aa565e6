// Requests to the server of this page.

export class Refused extends Error {
  constructor(status, problem) {
    super(problem.message);
    this.status = status;
    this.key = problem.key ?? "";
  }
}

const token = () => sessionStorage.getItem("fedgap-token") ?? "";

// Whether the page was opened with the link that `fedgap studio` printed.
export function takeToken() {
  const found = new URLSearchParams(location.hash.slice(1)).get("token");
  if (!found || location.hash.startsWith("#/")) return false;
  sessionStorage.setItem("fedgap-token", found);
  history.replaceState(null, "", "#/plan");
  return true;
}

async function answer(path, options) {
  let reply;
  try {
    reply = await fetch(path, options);
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused(0, { message: "The studio does not answer. Check that `fedgap studio` is still running." });
  }
  if (reply.ok) return reply;
  let problem = { message: `The studio refused this (${reply.status}).` };
  try {
    problem = await reply.json();
  } catch { /* not one of our own replies */ }
  throw new Refused(reply.status, problem);
}

export const get = async (path) => (await answer(path)).json();

export async function post(path, body = {}) {
  return (await answer(path, request(body))).json();
}

function request(body, signal) {
  return { method: "POST", signal, body: JSON.stringify(body),
           headers: { "content-type": "application/json", "x-fedgap-token": token() } };
}

// One JSON object per line, passed on as they arrive. Aborting the signal stops the solver.
export async function stream(path, body, signal, take) {
  const reply = await answer(path, request(body, signal));
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) take(JSON.parse(line));
  }
}

// --- text in an address: compressed, in characters that need no escaping ----- --------------------------------------

export async function pack(value) {
  const deflated = new Blob([JSON.stringify(value)]).stream().pipeThrough(new CompressionStream("deflate-raw"));
  const bytes = new Uint8Array(await new Response(deflated).arrayBuffer());
  let text = "";
  for (let i = 0; i < bytes.length; i += 32768) text += String.fromCharCode(...bytes.subarray(i, i + 32768));
  return btoa(text).replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

export async function unpack(text) {
  const bytes = Uint8Array.from(atob(text.replaceAll("-", "+").replaceAll("_", "/")), (c) => c.charCodeAt(0));
  const inflated = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
  return JSON.parse(await new Response(inflated).text());
}
