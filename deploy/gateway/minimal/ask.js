// Ask kvroute which engine is to have a request. Whatever goes wrong, any engine has it.
async function ask(r) {
    try {
        const reply = await r.subrequest('/_kvroute', {method: 'POST', body: r.requestText});
        if (reply.status === 200) {
            const answer = JSON.parse(reply.responseText);
            r.variables.kvroute_url = answer.url;
            r.variables.kvroute_dp_rank = answer.headers['X-data-parallel-rank'] || '';
            return r.internalRedirect('@chosen');
        }
        r.warn(`kvroute answered ${reply.status}`);
    } catch (e) {
        r.warn(`kvroute was not asked: ${e}`);
    }
    r.internalRedirect('@any');
}

export default {ask};
