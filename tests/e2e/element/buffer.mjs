// What some packages take for granted, as in Node.

export { Buffer } from "buffer";
