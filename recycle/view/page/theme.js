// Colours: those of the page's theme, those of ops and home pipelines as pixels, and the hatches of home pipelines.

const NAMES = ['ground', 'ink', 'dim', 'rule', 'idle', 'dead', 'back', 'pause', 'boundary', 'lit', 'memory', 'critical', 'void', 'veil'];

// A colour #rrggbb as a pixel of an image.
export function word(colour) {
  const value = parseInt(colour.slice(1), 16);
  return (0xff000000 | ((value & 0xff) << 16) | (value & 0xff00) | (value >> 16)) >>> 0;
}

// The colour between two, at a share of the way.
function between(one, other, share) {
  const mix = [1, 3, 5].map((place) => {
    const [from, to] = [one, other].map((colour) => parseInt(colour.slice(place, place + 2), 16));
    return Math.round(from + (to - from) * share).toString(16).padStart(2, '0');
  });
  return `#${mix.join('')}`;
}

export function readTheme(page, pen) {
  const style = getComputedStyle(document.documentElement);
  const dark = matchMedia('(prefers-color-scheme: dark)').matches;
  const ink = style.getPropertyValue('--ink').trim();
  return {
    ...Object.fromEntries(NAMES.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])),
    words: page.ops.map((op) => word(op.fill)),
    curves: [style.getPropertyValue('--focus').trim(), style.getPropertyValue('--back').trim()],
    // Alone on the ground they have to stand out from it.
    stripWords: page.homes.map((colour) => word(between(colour, ink, dark ? 0.45 : 0))),
    homeWords: page.homes.map(word),
    hatches: page.homes.map((colour) => hatch(pen, colour)),
  };
}

function hatch(pen, colour) {
  const tile = document.createElement('canvas');
  tile.width = tile.height = 6;
  const line = tile.getContext('2d');
  line.strokeStyle = colour;
  line.lineWidth = 1.4;
  line.globalAlpha = 0.75;
  for (const shift of [-6, 0, 6]) {
    line.moveTo(shift, 6);
    line.lineTo(shift + 6, 0);
  }
  line.stroke();
  return pen.createPattern(tile, 'repeat');
}
