// The shell of Element Web: platform, addresses, and the one component that is all the rest.

import "matrix-js-sdk/src/browser-index";
import React from "react";
import ReactDOM from "react-dom";
import { AutoDiscovery } from "matrix-js-sdk/src/matrix";
import BasePlatform from "matrix-react-sdk/src/BasePlatform";
import MatrixChat from "matrix-react-sdk/src/components/structures/MatrixChat";
import { setLanguage } from "matrix-react-sdk/src/languageHandler";
import { MatrixClientPeg } from "matrix-react-sdk/src/MatrixClientPeg";
import PlatformPeg from "matrix-react-sdk/src/PlatformPeg";
import SdkConfig from "matrix-react-sdk/src/SdkConfig";
import { setTheme } from "matrix-react-sdk/src/theme";
import AutoDiscoveryUtils from "matrix-react-sdk/src/utils/AutoDiscoveryUtils";

class Platform extends BasePlatform {
    async getConfig() { return SdkConfig.get(); }
    getDefaultDeviceDisplayName() { return "Element Web"; }
    getHumanReadableName() { return "Web Platform"; }
    async requestNotificationPermission() { return "denied"; }
    async getAppVersion() { return "end-to-end"; }
    reload() { window.location.reload(); }
}

/** The screen that the address names, as `MatrixChat` wants it. */
function screen() {
    const [name, query] = window.location.hash.slice(2).split("?");
    return { screen: name, params: Object.fromEntries(new URLSearchParams(query ?? "")) };
}

async function start() {
    PlatformPeg.set(new Platform());
    navigator.serviceWorker.addEventListener("message", ({ ports }) => {
        const client = MatrixClientPeg.get();
        ports[0].postMessage({ token: client?.getAccessToken(), server: client?.getHomeserverUrl() });
    });
    await navigator.serviceWorker.register("/service_worker.js");
    await navigator.serviceWorker.ready;
    await setLanguage(["en"]);
    await setTheme();

    const found = await AutoDiscovery.fromDiscoveryConfig(SdkConfig.get().default_server_config);
    const server = AutoDiscoveryUtils.buildValidatedConfigFromDiscovery(undefined, found, true);
    SdkConfig.add({ validated_server_config: { ...(await server), isDefault: true } });

    let last = "";
    const chat = React.createRef();
    window.addEventListener("hashchange", () => {
        if (window.location.hash === last) return;
        const { screen: name, params } = screen();
        chat.current.showScreen(name, params);
    });
    ReactDOM.render(React.createElement(MatrixChat, {
        ref: chat,
        config: SdkConfig.get(),
        onNewScreen(name, replace) {
            last = `#/${name}`;
            if (replace) window.location.replace(last);
            else window.location.assign(last);
        },
        realQueryParams: Object.fromEntries(new URLSearchParams(window.location.search)),
        startingFragmentQueryParams: screen().params,
        enableGuest: false,
        onTokenLoginCompleted: () => window.history.replaceState(null, "", "/"),
        initialScreenAfterLogin: screen(),
        defaultDeviceDisplayName: "Element Web",
    }), document.getElementById("matrixchat"));
    window.matrixChat = chat.current;
}

await start();
