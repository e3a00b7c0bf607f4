// The gateway's half of kvroute: ask a router, pass the request on, tell the router how it ended. See docs/gateway.md.
// For njs 0.7.9 and later. Nothing is kept in module variables: newer versions serve many requests in one context.

import fs from 'fs';

const MAX_TRIES = 3;            // engines for one request
const MAX_REACHED = 2;          // of these, engines that may have begun on it before they failed
const MAX_READ_BYTES = 4194304; // larger bodies are not read here: parsing stops everything else in the worker
const MAX_TOKENS = 2147483647;  // the router's bound
const MAX_USAGE_BYTES = 2048;
const QUIET_MS = 5000;          // an answer that breaks off after such a silence has run into a time limit
const MARKS = ['"usage":{', '"usage": {'];
const USAGE = /^"usage": ?(\{(?:[^{}]|\{[^{}]*\})*\})/;
const URL_FORM = /^https?:\/\/[A-Za-z0-9._\-\[\]:]+(\/[A-Za-z0-9._~\-\/]*)?$/;
const ID_FORM = /^[A-Za-z0-9_\-]{1,64}$/;
const RANK_FORM = /^[0-9]{1,6}$/;
const ROUTER_FORM = /^[0-9a-fA-F.:\[\]]+$/;
const SAME_FIELDS = ['messages', 'tools', 'chat_template_kwargs', 'add_generation_prompt', 'priority', 'echo',
                     'logprobs', 'prompt_logprobs', 'cache_salt', 'extra_key'];
const REASONS = {'401': 'token', '502': 'unreachable', '503': 'unavailable', '504': 'slow'};
const MESSAGES = {'404': 'there is nothing at this path', '405': 'the method is not allowed here',
                  '413': 'the body is too large'};

// POST /v1/completions and /v1/chat/completions.
async function completions(r) {
    if (r.method !== 'POST') {
        return refuse(r, 405, 'only POST is allowed here');
    }
    await send(r, []);
}

// The chosen engine failed before it answered: once more, without it.
async function again(r) {
    const v = r.variables;
    const status = last(v.upstream_status);
    const reached = last(v.upstream_connect_time) !== '-';
    const tried = v.kvroute_tried ? JSON.parse(v.kvroute_tried) : [];
    tried.push({url: v.kvroute_url, reached: reached});
    v.kvroute_tried = JSON.stringify(tried);
    r.warn(`kvroute: ${v.kvroute_url} failed, status ${status}, reached ${reached}, request ${v.kvroute_id}`);
    tell(r, 'finished', {error: failure(status, reached, last(v.upstream_header_time) !== '-')});
    const begun = tried.filter(one => one.reached).length;
    if (tried.length >= MAX_TRIES || begun >= MAX_REACHED || (reached && status === '504')) {
        const code = status === '503' || status === '504' ? Number(status) : 502;
        return refuse(r, code, 'the engine failed before it answered', 'engine_failed');
    }
    await send(r, tried.map(one => one.url));
}

// Why there is no answer to pass on. The status is the engine's own only where it has sent headers.
function failure(status, reached, answered) {
    if (answered) {
        return {kind: 'status', status: Number(status)};
    }
    const late = status === '504';
    if (!reached) {
        return {kind: 'connect', detail: late ? 'no connection in time' : 'no connection'};
    }
    return late ? {kind: 'timeout', detail: 'no answer in time'}
        : {kind: 'connect', detail: 'the connection was closed before an answer'};
}

// nginx itself refused, or found no engine without a router's help.
function failed(r) {
    const status = Number(r.variables.status);
    if (r.variables.kvroute_fallback && status >= 502 && status <= 504) {
        return refuse(r, status, 'no engine of the model answered', 'engine_failed');
    }
    refuse(r, status, MESSAGES[status] || 'the gateway failed');
}

// Whatever goes wrong in here, the request goes to some engine.
async function send(r, exclude) {
    try {
        await route(r, exclude);
    } catch (e) {
        r.error(`kvroute: ${e}`);
        fall(r, 'gateway-error');
    }
}

async function route(r, exclude) {
    const v = r.variables;
    v.kvroute_url = v.kvroute_dp_rank = v.kvroute_instance = v.kvroute_id = v.kvroute_reusable = '';
    const body = bodyOf(r);
    if (body.why) {
        return fall(r, body.why);
    }
    v.kvroute_model = typeof body.asked.model === 'string' ? body.asked.model.slice(0, 512) : '';
    v.kvroute_prompts = promptsIn(body.asked);
    v.kvroute_question = JSON.stringify(questionOf(body.asked, v.kvroute_session, exclude));
    const reply = await r.subrequest('/_kvroute/route', {method: 'POST'});
    const answer = objectOf(reply.responseText);
    if (reply.status === 404 && answer && Array.isArray(answer.models)) {
        return fall(r, 'unknown-model');    // to this router, for the moment: the engines may know better
    }
    if (reply.status !== 200) {
        return fall(r, REASONS[reply.status] || `router-${reply.status}`);
    }
    const router = last(reply.variables.upstream_addr);
    if (!answer || !URL_FORM.test(answer.url) || !ID_FORM.test(answer.request_id) || !ROUTER_FORM.test(router)) {
        return fall(r, 'garbage');
    }
    v.kvroute_url = answer.url.replace(/\/+$/, '');
    v.kvroute_dp_rank = rankOf(answer.headers);
    v.kvroute_instance = reply.headersOut['x-kvroute-instance'] || '';
    v.kvroute_id = answer.request_id;
    v.kvroute_reusable = Number.isInteger(answer.reusable_tokens) ? `${answer.reusable_tokens}` : '';
    v.kvroute_router = router;
    r.internalRedirect(exclude.length ? '@next_engine' : '@engine');
}

// Any engine of the model.
function fall(r, why) {
    r.variables.kvroute_fallback = why;
    r.warn(`kvroute: routed without a router: ${why}`);
    r.internalRedirect('@fallback');
}

function bodyOf(r) {
    if (Number(r.headersIn['Content-Length']) > MAX_READ_BYTES) {
        return {why: 'body-large'};
    }
    let text;
    try {
        text = r.requestText;
    } catch (e) {
        return {why: 'body-large'};     // nginx has put it into a file
    }
    if (text && text.length > MAX_READ_BYTES) {
        return {why: 'body-large'};
    }
    const asked = objectOf(text || '');
    return asked ? {asked: asked} : {why: 'body-unreadable'};
}

function objectOf(text) {
    try {
        const value = JSON.parse(text);
        return value !== null && typeof value === 'object' && !Array.isArray(value) ? value : null;
    } catch (e) {
        return null;
    }
}

// The routing request of an engine request. What only a gateway may set (candidates, dry_run, ...) is not copied.
function questionOf(asked, session, exclude) {
    const question = {model: asked.model};
    SAME_FIELDS.forEach(name => {
        if (asked[name] !== undefined && asked[name] !== null) {
            question[name] = asked[name];
        }
    });
    if (question.messages === undefined) {
        question.prompt = isList(asked.prompt) ? asked.prompt[0] : asked.prompt;    // of several the first decides
    }
    if (typeof asked.lora_path === 'string') {
        question.lora = asked.lora_path;    // SGLang's name of it
    }
    const most = asked.max_completion_tokens || asked.max_tokens;
    if (Number.isInteger(most) && most >= 0 && most <= MAX_TOKENS) {
        question.max_tokens = most;
    }
    if (session) {
        question.session_id = session;
    }
    if (exclude.length) {
        question.exclude = exclude;
    }
    return question;
}

// A list of prompts, not of one prompt's token ids.
function isList(prompt) {
    return Array.isArray(prompt) && prompt.length > 0 && typeof prompt[0] !== 'number';
}

function promptsIn(asked) {
    return isList(asked.prompt) ? `${asked.prompt.length}` : '1';
}

function rankOf(headers) {
    const rank = headers ? headers['X-data-parallel-rank'] : undefined;
    return typeof rank === 'string' && RANK_FORM.test(rank) ? rank : '';
}

// The last of nginx's list of attempts: "a, b : c".
function last(attempts) {
    return (attempts || '').split(/ : |, /).pop();
}

// Tell the router that chose, without waiting.
function tell(r, what, report) {
    const v = r.variables;
    v.kvroute_told = JSON.stringify(report || {});
    const args = `router=${v.kvroute_router}&id=${v.kvroute_id}&what=${what}`;
    r.subrequest('/_kvroute/tell', {args: args, method: 'POST', detached: true});
}

// ---- filters: they look at the engine's answer while it goes by

function answered(r) {
    r.variables.kvroute_status = `${r.status}`;
    r.variables.kvroute_streams = /^text\/event-stream/i.test(r.headersOut['Content-Type'] || '') ? 'waiting' : '';
}

function watched(r, data, flags) {
    r.sendBuffer(data, flags);
    const v = r.variables;
    if (data.length === 0 || flags.last) {
        v.kvroute_end = flags.last ? 'whole' : emptied(v);
    }
    if (data.length === 0) {
        return;
    }
    const now = Date.now();
    if (now - Number(v.kvroute_piece) >= 1000) {
        v.kvroute_piece = `${now}`;     // once a second: every value that is set stays in memory until the end
    }
    if (v.kvroute_streams === 'waiting') {
        v.kvroute_streams = 'begun';
        tell(r, 'first_token');
    }
    const before = v.kvroute_usage;
    const after = usageSeen(before, data);
    if (after !== before) {
        v.kvroute_usage = after;
    }
}

// nginx passes on a piece of nothing after the headers of an answer that has not begun, and when the engine breaks off.
// When the client leaves, it passes on nothing at all.
function emptied(v) {
    if (!v.kvroute_piece && v.kvroute_end === '') {
        return 'begun';
    }
    return v.kvroute_piece && Date.now() - Number(v.kvroute_piece) >= QUIET_MS ? 'late' : 'broken';
}

// The text from the last mark on, or, at the end of a piece that ends within a line, what may be the start of a mark.
function usageSeen(before, data) {
    if (before && !marked(before)) {
        return usageSeen('', Buffer.concat([Buffer.from(before), data]));
    }
    const at = Math.max(data.lastIndexOf(MARKS[0]), data.lastIndexOf(MARKS[1]));
    if (at >= 0) {
        return data.slice(at, at + MAX_USAGE_BYTES).toString();
    }
    if (before) {
        return USAGE.test(before) || before.length > MAX_USAGE_BYTES ? before
            : before + data.slice(0, MAX_USAGE_BYTES).toString();
    }
    return data[data.length - 1] === 10 ? '' : data.slice(-MARKS[1].length).toString();
}

function marked(text) {
    return text.startsWith(MARKS[0]) || text.startsWith(MARKS[1]);
}

// ---- variables

// The body of POST /requests/{id}/finished. Several prompts were routed as one: their sum says nothing about it.
function usageReport(r) {
    const v = r.variables;
    const found = v.kvroute_status === '200' && v.kvroute_prompts === '1' ? USAGE.exec(v.kvroute_usage) : null;
    const usage = found ? objectOf(found[1]) : null;
    const details = usage ? usage.prompt_tokens_details : null;
    const report = {};
    count(report, 'prompt_tokens', usage, 'prompt_tokens');
    count(report, 'output_tokens', usage, 'completion_tokens');
    count(report, 'cached_tokens', details, 'cached_tokens');
    const error = endedBadly(v);
    if (error) {
        report.error = error;
    }
    return JSON.stringify(report);
}

// What was wrong with an answer that had begun, or with a client that did not wait for it.
function endedBadly(v) {
    if (Number(v.kvroute_status) >= 400) {
        return {kind: 'status', status: Number(v.kvroute_status)};
    }
    if (v.kvroute_end === 'whole') {
        return null;
    }
    if (v.kvroute_end === 'late') {
        return {kind: 'timeout', detail: 'the answer broke off after a silence'};
    }
    return v.kvroute_end === 'broken' ? {kind: 'connect', detail: 'answer broke off'} : {kind: 'aborted'};
}

function count(report, name, usage, key) {
    if (usage && Number.isInteger(usage[key]) && usage[key] >= 0) {
        report[name] = usage[key];
    }
}

// The routers' bearer token, from KVROUTE_AUTH__TOKEN or the file that KVROUTE_TOKEN_FILE names.
function authorization(r) {
    let token = process.env.KVROUTE_AUTH__TOKEN;
    if (!token && process.env.KVROUTE_TOKEN_FILE) {
        try {
            token = fs.readFileSync(process.env.KVROUTE_TOKEN_FILE, 'utf8').trim();
        } catch (e) {
            r.error(`kvroute: the token file cannot be read: ${e}`);
        }
    }
    return token && /^[\x21-\x7e]+$/.test(token) ? `Bearer ${token}` : '';
}

// An error in the form of the OpenAI API.
function refuse(r, status, message, code, param) {
    const type = status < 500 ? 'invalid_request_error' : 'server_error';
    const error = {message: message, type: type, param: param || null, code: code || null};
    r.headersOut['Content-Type'] = 'application/json';
    r.return(status, JSON.stringify({error: error}) + '\n');
}

export default {completions, again, failed, answered, watched, usageReport, authorization};
