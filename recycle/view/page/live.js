// A page that is served: how a run goes on, and what other plans there are.

import { make } from './head.js';

const PAUSE = 500; // milliseconds between two looks at a run
const [WIDE, HIGH] = [300, 96]; // pixels of a curve
const [LABEL, BELOW, LEFT] = [18, 16, 42]; // of these above it, for its name, and below and left of it, for its axes
const SVG = document.documentElement.namespaceURI.replace('1999/xhtml', '2000/svg');

const ask = (address) => fetch(address).then((answer) => answer.json());

// Look at the run again and again; ``show`` gets the time line whenever it has changed.
export function watchRun(show) {
  let version = '';
  const places = lay(['figures', 'curves', 'servers', 'copies', 'news']);
  const look = () => ask('state').then((state) => {
    if (state.error) throw new Error(state.error);
    sayFigures(places.figures, state);
    const seen = `${state.version} ${state.ended}`;
    if (seen === version) return null;
    version = seen;
    tell(places, state);
    return ask('timeline').then(show);
  }).catch((error) => {
    places.figures.replaceChildren();
    make('strong', `not live: ${error.message}`, places.figures);
    version = '';
  }).then(() => setTimeout(look, PAUSE));
  look();
}

// Kill a server of a plan, or bring it back: what this returns does that, given its name. The dead are in the address.
export function tryPlans(dead, servers, show) {
  const { figures, tries } = lay(['figures', 'tries']);
  let chosen = [...dead].sort();
  const before = [];
  const say = (text, kind = '') => {
    figures.replaceChildren();
    make('span', 'Click the name of a server to kill it, or to bring it back. ', figures);
    make('strong', text, figures).className = kind;
  };
  const tell = (said = '') => say((chosen.length ? `dead: ${chosen.join(', ')}` : 'all are alive') + (said ? `; ${said}` : ''));
  const go = (next, keep) => {
    say('...');
    return ask(`plan?dead=${next.join(',')}`).then((answer) => {
      if (answer.error) {
        say(answer.error, 'wrong');
        return;
      }
      if (keep) before.push(chosen);
      chosen = next;
      undo.disabled = !before.length;
      const query = chosen.length ? `?dead=${chosen.join(',')}` : location.pathname;
      history.replaceState(null, '', query + location.hash);
      show(answer.document);
      tell(answer.said);
    });
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
  const undo = button('undo', 'try-undo', () => go(before.pop(), false));
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
    ...(state.loss === null ? [] : [['loss', state.loss.toFixed(4)]]),
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

// How many servers are live, or were when the run ended.
function sayLive({ servers, ended }) {
  const live = servers.filter((each) => each.state === (ended ? 'ended' : 'live')).length;
  return `${live} of ${servers.length} ${ended ? 'live at the end' : 'live'}`;
}

function tell({ curves, servers, copies, news }, state) {
  const marks = state.events.filter((each) => each.kind === 'failure' && each.step).map((each) => each.step);
  curves.replaceChildren(
    drawCurve('loss', '', state.steps, state.losses, marks),
    drawCurve('throughput', 'micro-batches/s', state.steps, state.rates, marks),
  );
  sayServers(servers, state.servers);
  copies.replaceChildren();
  scrolls(copies, 'group', 'where the state of each stage is');
  for (const { stage, text, last } of state.copies) {
    const item = make('span', '', copies);
    item.className = last ? 'last' : '';
    if (last) item.title = 'the next death in this stage loses its state';
    make('strong', `stage ${stage}`, item);
    make('span', text, item);
  }
  news.replaceChildren();
  scrolls(news, 'log', 'what happened');
  for (const { at, clock, kind, text } of [...state.events].reverse()) {
    const item = make('div', '', news);
    item.className = kind;
    make('span', at, item).className = 'at';
    if (clock) make('span', clock, item).className = 'clock';
    make('span', text, item);
  }
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
  scrolls(place, 'group', 'servers');
  for (const host of [...new Set(all.map((each) => each.host))].sort()) {
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

// A curve with its least and greatest value, its first and last iteration, and a mark at each failure.
function drawCurve(name, unit, steps, values, failures) {
  const picture = document.createElementNS(SVG, 'svg');
  picture.setAttribute('width', WIDE);
  picture.setAttribute('height', HIGH);
  const title = document.createElementNS(SVG, 'title');
  title.textContent = `${name} until iteration ${steps.at(-1) ?? 0}`;
  const label = document.createElementNS(SVG, 'text');
  label.setAttribute('y', 11);
  label.textContent = unit ? `${name}, ${unit}` : name;
  picture.setAttribute('role', 'img');
  picture.setAttribute('aria-label', title.textContent);
  const least = Math.min(...values);
  const room = Math.max(...values) - least || 1;
  const across = (place) => LEFT + (place * (WIDE - LEFT - 4)) / Math.max(1, values.length - 1);
  const write = (text, x, y, anchor) => {
    const place = document.createElementNS(SVG, 'text');
    for (const [key, value] of Object.entries({ x, y, 'text-anchor': anchor })) place.setAttribute(key, value);
    place.textContent = text;
    picture.append(place);
  };
  if (values.length) {
    write((least + room).toPrecision(3), LEFT - 4, LABEL + 8, 'end');
    write(least.toPrecision(3), LEFT - 4, HIGH - BELOW, 'end');
    write(String(steps[0]), LEFT, HIGH - 2, 'start');
    write(`iteration ${steps.at(-1)}`, WIDE - 2, HIGH - 2, 'end');
  }
  for (const failure of failures) {
    const place = steps.indexOf(failure);
    if (place < 0) continue;
    const mark = document.createElementNS(SVG, 'line');
    mark.setAttribute('class', 'failure');
    const [x, top, bottom] = [across(place).toFixed(1), LABEL, HIGH - BELOW];
    for (const [key, value] of Object.entries({ x1: x, x2: x, y1: top, y2: bottom })) mark.setAttribute(key, value);
    picture.append(mark);
  }
  const line = document.createElementNS(SVG, 'polyline');
  const places = values.map((value, place) => {
    const down = ((HIGH - LABEL - BELOW - 3) * (value - least)) / room;
    return [across(place).toFixed(1), (HIGH - BELOW - down).toFixed(1)].join(',');
  });
  line.setAttribute('points', places.join(' '));
  picture.append(title, line, label);
  return picture;
}
