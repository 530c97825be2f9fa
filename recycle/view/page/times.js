// Times in words: in the unit that fits them where they are lengths of time, and bare where they are slots and the like.

const MICROSECONDS = {
  ns: 1e-3, us: 1, '\u00b5s': 1, ms: 1e3, s: 1e6, nanosecond: 1e-3, microsecond: 1, millisecond: 1e3, second: 1e6,
  min: 6e7, minute: 6e7, h: 3.6e9, hour: 3.6e9,
};
const SCALES = [['s', 1e6], ['ms', 1e3], ['us', 1], ['ns', 1e-3]];

// A number without needless digits.
function short(value) {
  return String(Number(value.toPrecision(6)));
}

// A time as short as can be: of slots their number, of lengths of time with the unit.
export function timeText(value, unit) {
  const scale = MICROSECONDS[unit.toLowerCase()];
  if (!scale) return short(value);
  const [name, size] = SCALES.find((each) => Math.abs(value * scale) >= each[1]) ?? SCALES[value ? 3 : 0];
  return `${Number(((value * scale) / size).toPrecision(4))} ${name}`;
}

// A length of time, with its unit whatever it is.
export function lengthText(value, unit) {
  if (MICROSECONDS[unit.toLowerCase()]) return timeText(value, unit);
  return `${short(value)} ${unit}${value === 1 || unit.length <= 2 ? '' : 's'}`;
}

// What an axis shows where nothing has happened yet: a second, or ten of what is no length of time.
export function someTime(unit) {
  return MICROSECONDS[unit.toLowerCase()] ? 1e6 / MICROSECONDS[unit.toLowerCase()] : 10;
}
