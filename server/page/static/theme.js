// A classic script that runs before the first paint, so that a chosen theme does not
// flash in the other one's colors.
'use strict';
try {
	const theme = localStorage.getItem('penstock-theme');
	if (theme === 'light' || theme === 'dark') document.documentElement.dataset.theme = theme;
} catch { /* storage is disabled: the system's theme applies */ }
