import { el } from './dom.js';

export function open(root, context) {
  root.append(el('p', { class: 'muted' }, 'rules'));
  return { update() {}, poll: context.pollHealth };
}
