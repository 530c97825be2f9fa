// A page that is served: how a run goes on, and what other plans there are.

import { make } from './head.js';

const PAUSE = 500; // milliseconds between two looks at a run
const [WIDE, HIGH] = [260, 52]; // pixels of a curve
const LABEL = 18; // of these above it, for its name
const SVG = document.documentElement.namespaceURI.replace('1999/xhtml', '2000/svg');

const ask = (address) => fetch(address).then((answer) => answer.json());

// Look at the run again and again; ``show`` gets the time line whenever it has changed.
export function watchRun(show) {
  let version = -1;
  const places = lay(['figures', 'curves', 'servers', 'copies', 'news']);
  const look = () => ask('state').then((state) => {
    if (state.error) throw new Error(state.error);
    if (state.version === version) return null;
    version = state.version;
    tell(places, state);
    return ask('timeline').then(show);
  }).catch((error) => {
    places.figures.replaceChildren();
    make('strong', `not live: ${error.message}`, places.figures);
    version = -1;
  }).then(() => setTimeout(look, PAUSE));
  look();
}

// Kill a server of a plan, or bring it back: what this returns does that, given its name.
export function tryPlans(dead, show) {
  const places = lay(['figures']);
  const chosen = new Set(dead);
  const say = (text, kind = '') => {
    places.figures.replaceChildren();
    make('span', 'Click the name of a server to kill it, or to bring it back. ', places.figures);
    make('strong', text, places.figures).className = kind;
  };
  const names = () => [...chosen].sort().join(', ');
  say(chosen.size ? `dead: ${names()}` : 'all are alive');
  return (server) => {
    const was = new Set(chosen);
    if (!chosen.delete(server)) chosen.add(server);
    say('...');
    ask(`plan?dead=${[...chosen].join(',')}`).then((answer) => {
      if (answer.error) {
        chosen.clear();
        was.forEach((each) => chosen.add(each));
        say(answer.error, 'wrong');
        return;
      }
      show(answer);
      say(chosen.size ? `dead: ${names()}` : 'all are alive');
    });
  };
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

function tell({ figures, curves, servers, copies, news }, state) {
  figures.replaceChildren();
  const said = [
    ['iteration', state.step || 'none yet'],
    ['loss', state.loss === null ? '' : state.loss.toFixed(4)],
    ['throughput', state.rate === null ? '' : `${state.rate.toPrecision(3)} micro-batches/s`],
    ['servers', `${state.live} of ${state.servers.length} live`],
    ['deaths', state.deaths],
  ];
  for (const [name, value] of said) {
    const figure = make('span', '', figures);
    make('span', `${name} `, figure);
    make('strong', String(value), figure).id = `live-${name}`;
  }
  curves.replaceChildren(drawCurve('loss', state.steps, state.losses), drawCurve('throughput', state.steps, state.rates));
  servers.replaceChildren();
  for (const server of state.servers) {
    const item = make('span', '', servers);
    item.className = server.state;
    make('strong', server.server, item);
    make('span', server.pid === null ? server.state : `${server.state}, pid ${server.pid} on ${server.host}`, item);
  }
  copies.replaceChildren();
  for (const { stage, text, last } of state.copies) {
    const item = make('span', '', copies);
    item.className = last ? 'last' : '';
    if (last) item.title = 'the next death in this stage loses its state';
    make('strong', `stage ${stage}`, item);
    make('span', text, item);
  }
  news.replaceChildren();
  for (const text of state.events.slice(-6).reverse()) make('div', text, news);
}

// A small curve, with its last value's iteration in the title.
function drawCurve(name, steps, values) {
  const picture = document.createElementNS(SVG, 'svg');
  picture.setAttribute('width', WIDE);
  picture.setAttribute('height', HIGH);
  const title = document.createElementNS(SVG, 'title');
  title.textContent = `${name} until iteration ${steps.at(-1) ?? 0}`;
  const label = document.createElementNS(SVG, 'text');
  label.setAttribute('y', 11);
  label.textContent = name;
  const least = Math.min(...values);
  const room = Math.max(...values) - least || 1;
  const line = document.createElementNS(SVG, 'polyline');
  const places = values.map((value, place) => {
    const x = (place * (WIDE - 4)) / Math.max(1, values.length - 1) + 2;
    return [x.toFixed(1), (HIGH - 3 - ((HIGH - LABEL) * (value - least)) / room).toFixed(1)].join(',');
  });
  line.setAttribute('points', places.join(' '));
  picture.append(title, line, label);
  return picture;
}
