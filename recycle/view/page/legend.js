// The legend: the signs that stand on this page, and what they mean.

import { make } from './head.js';

// Each sign: the class of its swatch, what it means, and whether anything on the page has it.
const SIGNS = [
  ['number', '3: micro-batch 3; 1.3: of pipeline 1', () => true],
  ['moved', 're-routed work, in the colour of its home pipeline', (panels) => panels.some((panel) => panel.someMoved)],
  ['dead', 'dead server', (panels) => panels.some((panel) => panel.rows.some((row) => row.outages.length))],
  ['back', 'came back', (panels) => panels.some((panel) => panel.rows.some((row) => row.outages.some(([, end]) => end !== null)))],
  ['void', 'void: made again after a failure', (panels) => panels.some((panel) => panel.void || panel.rows.some((row) => row.unrecorded.length))],
  ['pause', 'changes views', (panels) => panels.some((panel) => panel.rows.some((row) => row.pauses.length))],
  ['view', 'a new view', (panels) => panels.some((panel) => panel.views.length)],
  ['boundary', 'an iteration ends', () => true],
  ['corner', 'elsewhere than above; small: in another order; square: new', (panels) => panels.length > 1],
  ['critical', 'critical path: each had to wait for the one before', (_, show) => show.critical],
  ['limit', 'memory and its limit', (_, show) => show.memory],
];

export function fillLegend(panels, show) {
  const legend = document.getElementById('legend');
  legend.replaceChildren();
  for (const [name, meaning, isUsed] of SIGNS) {
    if (!isUsed(panels, show)) continue;
    const item = make('span', '', legend);
    make('i', '', item).className = `sign ${name}`;
    make('span', meaning, item);
  }
}
