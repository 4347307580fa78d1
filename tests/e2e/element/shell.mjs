// Element Web's settings first: much of it looks at them while it is loaded.

import SdkConfig from "matrix-react-sdk/src/SdkConfig";

SdkConfig.put(await (await fetch("/config.json")).json());
await import("./app.mjs");
