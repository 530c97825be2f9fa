// A page that is served: how a run goes on, and what other plans there are.

import { make } from './head.js';

const PAUSE = 500; // milliseconds between two looks at a run
const [WIDE, HIGH] = [300, 96]; // pixels of a curve
const [LABEL, BELOW, LEFT] = [18, 16, 50]; // of these above it, for its name, and below and left of it, for its axes
const SVG = document.documentElement.namespaceURI.replace('1999/xhtml', '2000/svg');

const ask = (address) => fetch(address).then((answer) => answer.json(), () => {
  throw new Error('recycle watch does not answer');
}).then((answer) => {
  if (answer.error) throw new Error(answer.error);
  return answer;
});

// Look at the run again and again; ``show`` gets the time line whenever it has changed.
export function watchRun(show) {
  let version = '';
  const places = lay(['figures', 'curves', 'servers', 'copies', 'news']);
  const look = () => ask('state').then((state) => {
    sayFigures(places.figures, state);
    // A process can end without a word.
    renew(places.servers, state.servers, sayServers);
    const seen = `${state.version} ${state.ended}`;
    if (seen === version) return null;
    version = seen;
    tell(places, state);
    return ask('timeline').then(show);
  }).catch((error) => {
    renew(places.figures, error.message, (place) => {
      place.replaceChildren();
      make('strong', `not live: ${error.message}`, place).className = 'wrong';
    });
    version = '';
  }).then(() => setTimeout(look, PAUSE));
  look();
}

// Say something where it has changed: what is selected, scrolled or read aloud is left alone meanwhile.
function renew(place, value, say) {
  const text = JSON.stringify(value);
  if (place.said === text) return;
  place.said = text;
  say(place, value);
}

// Kill a server of a plan, or bring it back: what this returns does that, given its name. The dead are in the address.
export function tryPlans(dead, servers, show) {
  const { figures, tries } = lay(['figures', 'tries']);
  figures.setAttribute('role', 'status');
  let chosen = [...dead].sort();
  const before = [];
  const say = (text, kind = '') => {
    figures.replaceChildren();
    make('span', 'Click the name of a server to kill it, or to bring it back. ', figures);
    make('strong', text, figures).className = kind;
  };
  const tell = (said = '') => say((chosen.length ? `dead: ${chosen.join(', ')}` : 'all are alive') + (said ? `; ${said}` : ''));
  const go = (next, keep) => {
    say('planning ...');
    return ask(`plan?dead=${next.join(',')}`).then((answer) => {
      if (keep) before.push(chosen);
      else if (before.at(-1) === next) before.pop();
      chosen = next;
      undo.disabled = !before.length;
      const query = chosen.length ? `?dead=${chosen.join(',')}` : location.pathname;
      history.replaceState(null, '', query + location.hash);
      show(answer.document);
      tell(answer.said);
    }).catch((error) => say(error.message, 'wrong'));
  };
  const flip = (server) => {
    const rest = chosen.filter((each) => each !== server);
    return go(rest.length < chosen.length ? rest : [...chosen, server].sort(), true);
  };
  const field = make('select', '', make('label', 'kill or bring back ', tries));
  field.id = 'try-server';
  for (const server of servers) make('option', server, field);
  const button = (text, id, press) => {
    const made = make('button', text, tries);
    made.id = id;
    made.addEventListener('click', press);
    return made;
  };
  button('go', 'try-go', () => flip(field.value));
  const undo = button('undo', 'try-undo', () => go(before.at(-1), false));
  button('all alive', 'try-all', () => go([], true));
  undo.disabled = true;
  if (chosen.length) go(chosen, false);
  else tell();
  return flip;
}

function lay(names) {
  const section = document.getElementById('live');
  section.replaceChildren();
  return Object.fromEntries(names.map((name) => {
    const place = make('div', '', section);
    place.id = name;
    return [name, place];
  }));
}

const STILL = 15; // seconds of silence that are told

function sayFigures(figures, state) {
  const { version, iterations, silent } = state;
  renew(figures, [version, iterations, sayLive(state)], () => writeFigures(figures, state));
}

function writeFigures(figures, state) {
  figures.replaceChildren();
  if (state.ended) {
    const early = state.iterations !== null && state.step < state.iterations;
    const place = make('strong', `ended${early ? ' before its last iteration' : ''}, at ${state.since}`, figures);
    place.id = 'live-state';
    place.className = early ? 'wrong' : '';
  } else if (state.silent > STILL) {
    const place = make('strong', `nothing written since ${state.since}`, figures);
    place.id = 'live-state';
    place.className = 'wrong';
  } else if (!state.servers.length) {
    make('strong', 'waiting for a run to begin here', figures).id = 'live-state';
    return;
  }
  const planned = state.iterations === null ? '' : ` of ${state.iterations}`;
  const said = [
    ['iteration', `${state.step || 'none yet'}${planned}`],
    ...(state.step ? [['loss', state.loss === null ? 'not finite' : state.loss.toFixed(4)]] : []),
    ...(state.rate === null ? [] : [['throughput', `${state.rate.toPrecision(3)} micro-batches/s`]]),
    ['servers', sayLive(state)],
    ['failures', state.failures],
    ...(state.left ? [['left', state.left]] : []),
    ...(state.cost ? [['failures and returns cost', state.cost]] : []),
  ];
  for (const [name, value] of said) {
    const figure = make('span', '', figures);
    make('span', `${name} `, figure);
    make('strong', String(value), figure).id = `live-${name.split(' ').at(-1)}`;
  }
}

// How many servers are live, or were when the run ended, or when it was last heard.
function sayLive({ servers, ended, silent }) {
  const live = servers.filter((each) => each.state === (ended ? 'ended' : 'live')).length;
  const when = ended ? ' at the end' : silent > STILL ? ' when something was last written' : '';
  return `${live} of ${servers.length} live${when}`;
}

function tell({ curves, servers, copies, news }, state) {
  const marks = state.events.filter((each) => each.kind === 'failure' && each.step).map((each) => each.step);
  curves.replaceChildren(
    drawCurve('loss', '', state.steps, state.losses, marks),
    drawCurve('throughput', 'micro-batches/s', state.steps, state.rates, marks),
  );
  renew(copies, state.copies, sayCopies);
  renew(news, state.events, sayNews);
}

// Where the state of each stage or chunk is.
function sayCopies(place, all) {
  place.replaceChildren();
  if (!all.length) return;
  scrolls(place, 'group', 'where the state is');
  make('em', 'state of', place);
  for (const { what, text, last } of all) {
    const item = make('span', '', place);
    item.className = last ? 'last' : '';
    if (last) item.title = 'the next death here loses this state';
    make('strong', what, item);
    make('span', text, item);
  }
}

// What happened, the newest first. What is said already stays, so that only the rest is read aloud.
function sayNews(place, events) {
  scrolls(place, 'log', 'what happened');
  const known = [...place.children];
  const items = [...events].reverse().map((event) => {
    const said = JSON.stringify(event);
    const found = known.findIndex((each) => each.said === said);
    return found < 0 ? newsItem(event, said) : known.splice(found, 1)[0];
  });
  if (!items.length) items.push(make('div', 'nothing has happened yet'));
  known.forEach((each) => each.remove());
  items.forEach((item, number) => {
    if (place.children[number] !== item) place.insertBefore(item, place.children[number] ?? null);
  });
}

function newsItem(event, said) {
  const item = make('div');
  item.said = said;
  item.className = event.kind;
  make('span', event.at, item).className = 'at';
  if (event.clock) make('span', event.clock, item).className = 'clock';
  make('span', event.text, item);
  return item;
}

// Have the keyboard reach a place, to scroll it.
function scrolls(place, role, name) {
  place.tabIndex = 0;
  place.setAttribute('role', role);
  place.setAttribute('aria-label', name);
}

// Servers, by the host that they are on.
function sayServers(place, all) {
  place.replaceChildren();
  if (!all.length) return;
  scrolls(place, 'group', 'servers');
  // Those that have not said yet where they are come last.
  const hosts = [...new Set(all.map((each) => each.host))].sort((one, other) => !one - !other || (one < other ? -1 : 1));
  for (const host of hosts) {
    const group = make('div', '', place);
    if (host) make('em', host, group);
    for (const { server, state, pid, memory } of all.filter((each) => each.host === host)) {
      const item = make('span', '', group);
      item.className = state;
      make('strong', server, item);
      const said = [state, pid === null ? '' : `pid ${pid}`, state === 'live' && memory ? `memory ${memory}` : ''];
      make('span', said.filter(Boolean).join(', '), item);
      if (memory) item.title = 'the most that it held for micro-batches in its last iteration, and its limit';
    }
  }
}

// A curve with its least and greatest value, its first and last iteration, and a mark at each failure. A value that is
// not finite is null in JSON, and left out.
function drawCurve(name, unit, allSteps, allValues, failures) {
  const steps = allSteps.filter((_, place) => allValues[place] !== null);
  const values = allValues.filter((value) => value !== null);
  const picture = document.createElementNS(SVG, 'svg');
  const add = (tag, attributes, text = '') => {
    const place = document.createElementNS(SVG, tag);
    for (const [key, value] of Object.entries(attributes)) place.setAttribute(key, value);
    place.textContent = text;
    picture.append(place);
  };
  const write = (text, x, y, anchor = 'start') => add('text', { x, y, 'text-anchor': anchor }, text);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const short = (value) => Number(value.toPrecision(3));
  const across = (place) => (LEFT + (place * (WIDE - LEFT - 4)) / Math.max(1, values.length - 1)).toFixed(1);
  const label = unit ? `${name}, ${unit}` : name;
  const last = steps.at(-1) ?? 0;
  const said = values.length
    ? `${label}: ${short(values.at(-1))} in iteration ${last}, between ${short(least)} and ${short(most)} since iteration ${steps[0]}`
    : `${label}: ${allValues.length ? 'never finite' : 'none yet'}`;
  for (const [key, value] of Object.entries({ width: WIDE, height: HIGH, role: 'img', 'aria-label': said })) picture.setAttribute(key, value);
  add('title', {}, said);
  write(label, 0, 11);
  if (!values.length) {
    write(allValues.length ? 'never finite' : 'no iteration is finished yet', WIDE / 2, HIGH / 2 + 8, 'middle');
    return picture;
  }
  if (most > least) write(short(most), LEFT - 4, LABEL + 8, 'end');
  write(short(least), LEFT - 4, HIGH - BELOW, 'end');
  write(steps[0], LEFT, HIGH - 2);
  if (last > steps[0]) write(`iteration ${last}`, WIDE - 2, HIGH - 2, 'end');
  // An iteration that a failure interrupted is made again, and is not there before that.
  const marked = failures.filter((step) => step >= steps[0]);
  if (marked.length) write('dashed: failures', WIDE - 2, 11, 'end');
  for (const step of marked) {
    const x = across(step > last ? values.length - 1 : steps.findIndex((each) => each >= step));
    add('line', { class: 'failure', x1: x, x2: x, y1: LABEL, y2: HIGH - BELOW });
  }
  const down = (value) => (HIGH - BELOW - ((HIGH - LABEL - BELOW - 3) * (value - least)) / (most - least || 1)).toFixed(1);
  add('polyline', { points: values.map((value, place) => `${across(place)},${down(value)}`).join(' ') });
  return picture;
}
