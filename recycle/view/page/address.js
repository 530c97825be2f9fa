// The view in the page's address: what is seen can be sent, kept and opened again.

const round = (value) => Number(value.toPrecision(7));

// The part of the address behind #.
export function describe(scene, follow) {
  const state = new URLSearchParams();
  // Everything is something else in another window, and when a run has gone on.
  if (!scene.whole) {
    state.set('from', round(scene.from));
    state.set('to', round(scene.time(scene.edge)));
    state.set('row', round(scene.rowHeight));
  }
  if (scene.top) state.set('top', Math.round(scene.top));
  state.set('by', scene.grouping);
  if (scene.foldChosen) state.set('folded', scene.folded ? [...scene.opened].join(' ') || '-' : 'no');
  const shown = Object.keys(scene.show).filter((name) => scene.show[name]);
  if (shown.length) state.set('show', shown.join(' '));
  const hidden = [...scene.hidden].map((op) => scene.page.ops[op].name);
  if (hidden.length) state.set('hide', hidden.join(' '));
  if (follow) state.set('follow', `${follow.iteration}/${follow.home}.${follow.microBatch}`);
  return state.toString();
}

// Take what an address says, and return the micro-batch that it follows, or null.
export function restore(scene, text) {
  const state = new URLSearchParams(text.replace(/^#/, ''));
  const number = (name) => (state.get(name) === null ? NaN : Number(state.get(name)));
  const [from, to, row, top] = ['from', 'to', 'row', 'top'].map(number);
  if (['stage', 'pipeline'].includes(state.get('by'))) scene.grouping = state.get('by');
  scene.foldChosen = state.has('folded');
  scene.folded = scene.foldChosen && state.get('folded') !== 'no';
  scene.opened = new Set((state.get('folded') ?? '').split(' ').filter((each) => each.includes('.')));
  const shown = (state.get('show') ?? '').split(' ');
  for (const name of Object.keys(scene.show)) scene.show[name] = shown.includes(name);
  const hidden = (state.get('hide') ?? '').split(' ');
  scene.hidden = new Set(scene.page.ops.flatMap((op, place) => (hidden.includes(op.name) ? [place] : [])));
  scene.fit();
  if ([from, to, row].every(Number.isFinite) && to > from && row >= 1) {
    scene.rowHeight = Math.min(60, row);
    scene.layout();
    scene.from = from;
    scene.perPixel = (to - from) / Math.max(50, scene.edge - scene.left);
  }
  if (Number.isFinite(top)) scene.top = top;
  const unit = /^(\d+)\/(\d+)\.(\d+)$/.exec(state.get('follow') ?? '');
  return unit ? { iteration: Number(unit[1]), home: Number(unit[2]), microBatch: Number(unit[3]) } : null;
}
