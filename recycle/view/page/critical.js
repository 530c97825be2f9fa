// Why things begin when they do: what a box had to wait for, and the chain of such boxes that the end waited for.

import { firstAbove } from './model.js';

// The boxes before which a box cannot begin: those whose results it needs, the one before it on its server, and before an
// update the last work of all servers that take part in it.
export function holders(panel, box) {
  const row = panel.rows[panel.rowOf[box]];
  const found = new Set(panel.needs(box));
  const before = box - 1;
  if (before >= row.boxes.from) found.add(before);
  const isUpdate = (each) => panel.ops[panel.boxes.op[each]].update;
  if (isUpdate(box) && !(before >= row.boxes.from && isUpdate(before))) {
    panel.rows.forEach((other) => {
      if (other === row || !(panel.barrier || other.stage === row.stage)) return;
      const last = lastWork(panel, other, panel.boxes.iteration[box], panel.boxes.end[box]);
      if (last >= 0) found.add(last);
    });
  }
  return [...found];
}

// The last box of a row in an iteration that is no update, if it ended before a time.
function lastWork(panel, row, iteration, until) {
  const { boxes } = panel;
  for (let box = row.boxes.to - 1; box >= row.boxes.from; box--) {
    if (boxes.iteration[box] === iteration && !panel.ops[boxes.op[box]].update && boxes.end[box] <= until) return box;
  }
  return -1;
}

// Of some boxes before which a box cannot begin, the one that ended last; -1 if there is none.
export function latest(panel, box, among) {
  const { start, end } = panel.boxes;
  let best = -1;
  for (const other of among) {
    if (start[other] <= start[box] && (best < 0 || end[other] > end[best])) best = other;
  }
  return best;
}

// The critical path: from the last box of all backwards, each time to what was waited for. In the order of time.
export function criticalPath(panel) {
  if (panel.critical) return panel.critical;
  const { end } = panel.boxes;
  let box = -1;
  for (let each = 0; each < end.length; each++) if (box < 0 || end[each] > end[box]) box = each;
  const found = new Set();
  while (box >= 0 && !found.has(box)) {
    found.add(box);
    box = latest(panel, box, holders(panel, box));
  }
  panel.critical = [...found].reverse();
  return panel.critical;
}

// Why a row does nothing at a time: in words, and the box that comes next with what it waits for.
export function idleness(panel, row, time, say) {
  const { start, end } = panel.boxes;
  const gone = row.unrecorded.find(([begin, stop]) => begin <= time && time <= stop);
  if (gone) {
    return { texts: [`void from ${say(gone[0])} to ${say(gone[1])}: what it computed died with it`], next: -1, holder: -1 };
  }
  const next = firstAbove(start, time, row.boxes.from, row.boxes.to);
  const since = next > row.boxes.from ? end[next - 1] : 0;
  if (next === row.boxes.to) {
    return { texts: row.dead ? [] : [`idle from ${say(since)}: nothing is left to do`], next: -1, holder: -1 };
  }
  const texts = [`idle from ${say(since)} to ${say(start[next])}`];
  const begun = panel.begun[firstAbove(panel.begun, time, 0, panel.begun.length)];
  if (begun <= start[next]) {
    texts.push(`the view ended: what it would have done next is made in the one that began at ${say(begun)}`);
    return { texts, next, holder: -1 };
  }
  const others = holders(panel, next).filter((each) => panel.rowOf[each] !== panel.rowOf[next]);
  const holder = latest(panel, next, others);
  if (holder < 0 || end[holder] <= since) {
    texts.push(`then ${panel.text(next)}: nothing that it needs is late, so memory or the order keeps it`);
    return { texts, next, holder: -1 };
  }
  const late = start[next] - end[holder] > 1e-9 ? `, and begins ${say(start[next] - end[holder])} later` : '';
  texts.push(`${panel.text(next)} waits for ${panel.text(holder)} on ${panel.rows[panel.rowOf[holder]].label} until ${say(end[holder])}${late}`);
  return { texts, next, holder };
}
