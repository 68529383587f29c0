// Calls of the admin API. The token is kept for this tab only, and sent as a header:
// there is no cookie, so no other site can act in the page's name.

import { t } from './language.js';

const tokenName = 'penstock-token';

export const hasToken = () => sessionStorage.getItem(tokenName) !== null;
export const setToken = (token) => sessionStorage.setItem(tokenName, token);
export const put = (path, body, query) => call('PUT', path, query, body ?? undefined);
export const removeToken = () => sessionStorage.removeItem(tokenName);

// An APIError is an answer that is not 200, or none at all (status 0).
export class APIError extends Error {
	constructor(status, message) {
		super(message);
		this.status = status;
	}
}

// A Blob is sent as it is, and other bodies as JSON.
async function call(method, path, query, body, accepted) {
	const isFile = body instanceof Blob;
	const parameters = new URLSearchParams(query ?? {}).toString();
	const headers = { Accept: 'application/json' };
	if (hasToken()) headers.Authorization = `Bearer ${sessionStorage.getItem(tokenName)}`;
	if (body !== undefined) headers['Content-Type'] = isFile ? 'application/octet-stream' : 'application/json';
	let response;
	try {
		response = await fetch(parameters ? `${path}?${parameters}` : path, {
			method, headers, body: body === undefined || isFile ? body : JSON.stringify(body),
			credentials: 'omit', cache: 'no-store', redirect: 'error', signal: AbortSignal.timeout(isFile ? 90000 : 15000),
		});
	} catch {
		throw new APIError(0, t('The daemon does not answer.'));
	}
	const text = await response.text().catch(() => '');
	if (!response.ok && response.status !== accepted) throw new APIError(response.status, detail(text) ?? `${response.status} ${response.statusText}`);
	try {
		return JSON.parse(text);
	} catch {
		throw new APIError(response.status, t('The answer is not JSON.'));
	}
}

function detail(text) {
	try {
		const problem = JSON.parse(text);
		return problem.detail ?? problem.title;
	} catch {
		return undefined;
	}
}

export const get = (path, query) => call('GET', path, query);
export const post = (path, query, body) => call('POST', path, query, body);
export const remove = (path, query) => call('DELETE', path, query);

// readiness returns whether the daemon is ready; one that is not answers 503.
export const readiness = () => call('GET', 'readyz', null, undefined, 503);
