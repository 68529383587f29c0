// address returns the link to a view with parameters; empty ones are left out.
export function address(name, parameters) {
	const query = new URLSearchParams();
	for (const [key, value] of Object.entries(parameters)) if (value) query.set(key, value);
	const text = query.toString();
	return `#/${name}${text ? `?${text}` : ''}`;
}
