import test from 'ava';
import fc from 'fast-check';
import { idFilter } from '../../proxy/id-filter.js';
import { budget } from './budget.js';

const IDS = [
  'chatcmpl-a1b2',
  'chatcmpl-a1b2-0',
  'cmpl-9/0',
  'tenant/a/req.1',
  '/leading',
  '.hidden',
  './here',
  '../up',
  'a//b',
  '42',
  'a[1]',
  'a1',
  '!bang',
  'ümlaut',
  'two words',
  'line\nbreak',
  'back\\slash',
  '{brace}',
  '(paren)',
  '*',
] as const;

function selected(...globs: string[]): string[] {
  return IDS.filter(idFilter(globs));
}

test('`*` selects every id, whatever is in it', (t) => {
  t.deepEqual(selected('*'), [...IDS]);
  t.deepEqual(selected(), [...IDS]);
  t.deepEqual(selected('nothing', '*'), [...IDS]);
  t.deepEqual(selected('*', '!nothing'), [...IDS]);
  t.deepEqual(selected('!nothing'), [...IDS]);
  fc.assert(
    fc.property(fc.string({ unit: 'binary', minLength: 1, maxLength: 50 }), (id) => {
      t.true(idFilter(['*', '!\u0000 no such id'])(id), JSON.stringify(id));
    }),
    budget(1, 2_000),
  );
});

test('a glob selects ids from beginning to end; `*` goes across slashes and dots, `?` is one character', (t) => {
  t.deepEqual(selected('chatcmpl-*'), ['chatcmpl-a1b2', 'chatcmpl-a1b2-0']);
  t.deepEqual(selected('cmpl-*'), ['cmpl-9/0']);
  t.deepEqual(selected('tenant/*'), ['tenant/a/req.1']);
  t.deepEqual(selected('tenant*1'), ['tenant/a/req.1']);
  t.deepEqual(selected('*/*/*'), ['tenant/a/req.1', 'a//b']);
  t.deepEqual(selected('.*'), ['.hidden', './here', '../up']);
  t.deepEqual(selected('/*'), ['/leading']);
  t.deepEqual(selected('*hidden'), ['.hidden']);
  t.deepEqual(selected('line*'), ['line\nbreak']);
  t.deepEqual(selected('4?'), ['42']);
  t.deepEqual(selected('chatcmpl'), []);
  t.deepEqual(selected('CHATCMPL-*'), []);
});

test('brackets are a choice of characters, and themselves behind a backslash', (t) => {
  t.deepEqual(selected('a[0-9]'), ['a1']);
  t.deepEqual(selected('a\\[1\\]'), ['a[1]']);
  t.deepEqual(selected('chatcmpl-{a1b2,zzz}'), ['chatcmpl-a1b2']);
  t.deepEqual(selected('two words'), ['two words']);
});

test('`!` excludes, wherever it stands in the list; excluding alone leaves all others', (t) => {
  const others = IDS.filter((id) => !id.startsWith('chatcmpl-'));
  t.deepEqual(selected('!chatcmpl-*'), others);
  t.deepEqual(selected('*', '!chatcmpl-*'), others);
  t.deepEqual(selected('!chatcmpl-*', '*'), others);
  t.deepEqual(selected('chatcmpl-*', '!*-0'), ['chatcmpl-a1b2']);
  t.deepEqual(selected('chatcmpl-*', '!chatcmpl-*'), []);
  t.deepEqual(selected('!*'), []);
});

test('only the first `!` excludes: an id that begins with one can be named', (t) => {
  t.deepEqual(
    selected('!!bang'),
    IDS.filter((id) => id !== '!bang'),
  );
  t.deepEqual(selected('\\!bang'), ['!bang']);
});
