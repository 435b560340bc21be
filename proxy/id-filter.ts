/** `tracking.requestIds`: globs over request ids, `!` in front excludes. */
import picomatch from 'picomatch';

/** An id is text, not a path: `*` takes slashes, leading dots and line ends too. */
const OPTIONS = { bash: true, dot: true, nonegate: true, flags: 's' } as const;

/**
 * Whether an id is selected: by at least one of the including globs (none given: by any), and by none of the
 * excluding ones.
 */
export function idFilter(globs: readonly string[]): (id: string) => boolean {
  const excluding = globs.filter((glob) => glob.startsWith('!')).map((glob) => glob.slice(1));
  const including = globs.filter((glob) => !glob.startsWith('!'));
  if (excluding.length === 0 && (including.length === 0 || including.includes('*'))) return () => true;
  const excludes = excluding.map(matcherOf);
  const includes = (including.length === 0 ? ['*'] : including).map(matcherOf);
  return (id) => includes.some((matches) => matches(id)) && !excludes.some((matches) => matches(id));
}

/** A slash is nothing special in an id, but it is to picomatch whatever its options say: it never gets to see one. */
function matcherOf(glob: string): (id: string) => boolean {
  if (glob === '*') return () => true;
  const matches = picomatch(withoutSlashes(glob), OPTIONS);
  return (id) => matches(withoutSlashes(id));
}

function withoutSlashes(text: string): string {
  return text.replaceAll('/', '\u0001');
}
