/** How long a program waits for a page or a server: on a busy machine each takes many times as long as on a quiet one. */
export const PATIENCE_MS = 100_000;
